"""Who says what: a table of the header names and the words by which servers tell limits.

One `Dialect` is one row, and a new vendor is one more row; nothing else has to change. A row names
headers (a `*` stands for the dimension a vendor puts into the name, such as `tokens` or `minute`),
how their values are written, and the words in a body that mean "slow down". The rows are data: the
rules that weigh them live in `signals`. The order is a precedence: a header belongs to the first
row that names it, and a user's own rows come before these.

A prefix that is not in the table is not acted upon: `Beta-RateLimit` was seen to be wrong (D16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from throttle.http import quotas
from throttle.http.delays import Form
from throttle.http.quotas import Quota

__all__ = ["DIALECTS", "QUOTA_ROLES", "Dialect", "Field", "Index", "Sign"]


Names = str | tuple[str, ...]
Reader = Callable[[Any, float, str | None], Iterable[Quota]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Words that are evidence of a throttle, in a place where they may stand.

    Exactly one of `header`, `path` (dots between the keys of a JSON body; a list on the way stands
    for each of its members) and `xml` (the name of an element) says where. A word is compared
    whole, after what comes before a `#` and behind a `:` has been cut off; with `part=True` it may
    stand anywhere in the text, in any case.
    `success` – believed below status 400 as well; `throttled=False` – it means that this is no
    limit, None – it says nothing about that; `scope` – what the limit concerns; `floor_s` – the
    least wait, in seconds, where none is stated (the reset of another limit is then not used);
    `should_retry=False` – trying again soon will not help.
    """

    words: frozenset[str]
    header: str | None = None
    path: str | None = None
    xml: str | None = None
    part: bool = False
    success: bool = False
    throttled: bool | None = True
    scope: str | None = None
    floor_s: float | None = None
    should_retry: bool | None = None

    def __post_init__(self) -> None:
        if (self.header, self.path, self.xml).count(None) != 2:
            raise ValueError(f"Sign: exactly one of header, path and xml is needed, not {self!r}")

    def matches(self, text: str) -> bool:
        """Whether `text`, found in that place, holds one of the words."""
        if self.part:
            folded = text.casefold()
            return any(word in folded for word in self.words)
        return text.rpartition("#")[2].partition(":")[0].strip() in self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One row. Header names are in lower case; a `*` is the dimension and ends up in the scope.

    Several names for one thing are a tuple. Where both are sent, the first row that names a header
    owns it.

    `limit`, `remaining`, `used` – counts; `reset` – when the quota is renewed, written as
    `reset_form` says; `reset_after` – the same in seconds, preferred where both are sent;
    `reset_date` – the same as a date, used where there is nothing else; `window` – the length of
    the window, `window_unit` seconds each, or a duration; `dimension` – a fixed one, for names
    without a `*`. `packed`, `body_packed` – a header, or a path in a body, that holds whole quotas,
    and the reader for it. `waits`, `body_waits` – headers and paths that say how long to wait, each
    with its form. `scopes` – headers whose value narrows the scope, each with the kind to put
    before it. `should_retry` – a header that says true or false. `signs` – evidence of a throttle.
    `seen` – further headers that only show that the row is in use; a response that carries any
    header of the row is a throttle when its status is in `refuses`, and any throttle that does has
    the scope `throttled_scope`; `zero_scope` – the scope of one whose quota is 0 of 0.
    """

    name: str
    limit: Names = ()
    remaining: Names = ()
    used: Names = ()
    reset: Names = ()
    reset_after: Names = ()
    reset_date: Names = ()
    reset_form: Form = "auto"
    window: Names = ()
    window_unit: float = 1.0
    dimension: str | None = None
    packed: tuple[tuple[str, Reader], ...] = ()
    body_packed: tuple[tuple[str, Reader], ...] = ()
    waits: tuple[tuple[str, Form], ...] = ()
    body_waits: tuple[tuple[str, Form], ...] = ()
    scopes: tuple[tuple[str, str], ...] = ()
    should_retry: Names = ()
    signs: tuple[Sign, ...] = ()
    seen: Names = ()
    refuses: frozenset[int] = frozenset()
    throttled_scope: str | None = None
    zero_scope: str | None = None

    @classmethod
    def family(cls, prefix: str, *, name: str | None = None, **others: Any) -> Dialect:
        """A row of the usual names: `prefix`-limit, -remaining, -used and -reset.

        `others` are fields of the row, and replace the usual names where they are given.
        """
        names = {field: f"{prefix}-{field}" for field in ("limit", "remaining", "used", "reset")}
        return cls(name=name or prefix, **(names | others))


class Field(NamedTuple):
    """What one header is to the row that owns it: role, dimension, and its form, kind or reader."""

    row: Dialect
    role: str
    dimension: str | None = None
    detail: Any = None


#: The fields of a row that together tell one quota.
QUOTA_ROLES = ("limit", "remaining", "used", "reset", "reset_after", "reset_date", "window")
_ROLES = (*QUOTA_ROLES, "should_retry", "seen")
# Fields of HTTP itself, and those of the IETF draft that only make sense together.
_STANDARD = {
    name: Field(Dialect(name="ietf"), name)
    for name in ("date", "age", "ratelimit", "ratelimit-policy")
}
_MEMO = 4096
_LONGEST_NAME = 128


class Index(dict[str | bytes, Field | None]):
    """Header name, as it is spelled on the wire -> the field it is, or None.

    A dictionary that fills itself: a name is looked at once, and after that a plain response costs
    one look-up a header. It stops growing at a bound, so that invented names cannot fill memory.
    """

    __slots__ = ("_names", "_patterns", "body_packed", "body_signs", "body_waits")

    def __init__(self, rows: Iterable[Dialect]) -> None:
        super().__init__()
        rows = tuple(rows)
        self.body_packed = [(row, *one) for row in rows for one in row.body_packed]
        self.body_waits = [(row, *one) for row in rows for one in row.body_waits]
        self.body_signs = [(row, one) for row in rows for one in row.signs if one.header is None]
        self._names: dict[str, Field] = dict(_STANDARD)
        self._patterns: list[tuple[str, str, Field]] = []
        for row in rows:
            for name, field in _fields(row):
                before, star, after = name.partition("*")
                if star:
                    self._patterns.append((before, after, field))
                else:
                    self._names.setdefault(name, field)

    def __missing__(self, name: str | bytes) -> Field | None:
        if len(name) > _LONGEST_NAME:
            return None
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        field = self._find(text.lower())
        if len(self) < _MEMO:
            self[name] = field
        return field

    def _find(self, name: str) -> Field | None:
        found = self._names.get(name)
        if found is not None:
            return found
        for before, after, field in self._patterns:
            middle = name[len(before) : len(name) - len(after)]
            if middle and name.startswith(before) and name.endswith(after):
                return field._replace(dimension=middle)
        return None


def _fields(row: Dialect) -> Iterator[tuple[str, Field]]:
    for role in _ROLES:
        names = getattr(row, role)
        for name in (names,) if isinstance(names, str) else names:
            yield name.lower(), Field(row, role, row.dimension)
    for role, pairs in (("packed", row.packed), ("wait", row.waits), ("scope", row.scopes)):
        for name, detail in pairs:
            yield name.lower(), Field(row, role, row.dimension, detail)
    for sign in row.signs:
        if sign.header is not None:
            yield sign.header.lower(), Field(row, "sign", None, sign.header)


def _words(*words: str) -> frozenset[str]:
    return frozenset(words)


_AWS = _words(
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottledException",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "TransactionInProgressException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "RequestThrottled",
    "SlowDown",
    "PriorRequestNotComplete",
    "EC2ThrottledException",
)
_GOOGLE = _words("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED")
_GOOGLE_DAILY = _words("dailyLimitExceeded", "quotaExceeded")
_GRAPHQL = _words("THROTTLED", "RATELIMITED", "RATE_LIMITED")
_MEDIAWIKI = _words("maxlag", "ratelimited")
_PROBLEMS = _words("quota-exceeded", "temporary-reduced-capacity", "abnormal-usage-detected")

DIALECTS: tuple[Dialect, ...] = (
    # How long to wait: RFC 9110, 10.2.3, then what others call it.
    Dialect(name="retry-after", waits=(("retry-after", "retry-after"),)),
    Dialect(
        name="milliseconds",
        waits=(
            ("retry-after-ms", "ms-delta"),
            ("x-ms-retry-after-ms", "ms-delta"),
            ("x-amz-retry-after", "ms-delta"),
        ),
    ),
    Dialect(
        name="x-retry-after",
        waits=(
            ("x-ratelimit-retry-after", "auto"),
            ("x-rate-limit-retry-after", "auto"),
            ("x-retry-after", "auto"),
            ("x-ratelimit-towait-sec", "delta"),
        ),
    ),
    # Families of names that many vendors share.
    # Revisions -00 to -06 of the IETF draft, and who took the names; GitLab, Twitch: epochs.
    Dialect.family(
        "ratelimit",
        reset_after="ratelimit-reset-after",
        reset_date=("ratelimit-resettime", "ratelimit-reset-date"),
        scopes=(("ratelimit-name", "throttle"), ("ratelimit-reason", "reason")),
        signs=(Sign(path="type", words=_PROBLEMS),),
    ),
    Dialect.family("rate-limit"),
    # GitHub, Discord, Reddit, Atlassian, Vimeo, Qualys, Akamai and hundreds more.
    Dialect.family(
        "x-ratelimit",
        reset_after="x-ratelimit-reset-after",
        reset_date=("x-ratelimit-reset-date", "x-ratelimit-reset-at", "x-ratelimit-next"),
        window=(
            "x-ratelimit-interval-seconds",
            "x-ratelimit-window-sec",
            "x-ratelimit-interval",
            "x-ratelimit-window",
        ),
        scopes=(("x-ratelimit-resource", "resource"), ("x-ratelimit-bucket", "bucket")),
        packed=(("x-ratelimit", quotas.json_object),),
    ),
    # X (Twitter), Okta, Crossref, Zendesk. Okta tells its limit of concurrency as a quota of 0.
    Dialect.family(
        "x-rate-limit",
        limit=("x-rate-limit-limit", "x-rate-limit"),
        window="x-rate-limit-interval",
        zero_scope="concurrency",
    ),
    # Dimensions. Kong, OpenAI, Groq, Azure: X-RateLimit-Remaining-Tokens.
    Dialect(
        name="x-ratelimit-field-dimension",
        limit="x-ratelimit-limit-*",
        remaining="x-ratelimit-remaining-*",
        used="x-ratelimit-used-*",
        reset="x-ratelimit-reset-*",
    ),
    # Linear, RapidAPI: X-RateLimit-Requests-Remaining.
    Dialect(
        name="x-ratelimit-dimension-field",
        limit="x-ratelimit-*-limit",
        remaining="x-ratelimit-*-remaining",
        used="x-ratelimit-*-used",
        reset="x-ratelimit-*-reset",
    ),
    # Vendors.
    Dialect(
        name="anthropic",
        limit="anthropic-ratelimit-*-limit",
        remaining="anthropic-ratelimit-*-remaining",
        reset="anthropic-ratelimit-*-reset",
        signs=(Sign(header="anthropic-ratelimit-unified-status", words=_words("rejected")),),
    ),
    Dialect(
        name="aws",
        signs=(
            Sign(header="x-amzn-errortype", words=_AWS),
            Sign(path="__type", words=_AWS),
            Sign(path="code", words=_AWS),
            Sign(xml="Code", words=_AWS),
        ),
    ),
    Dialect(
        name="binance",
        seen=("x-mbx-used-weight", "x-mbx-used-weight-*", "x-mbx-order-count-*"),
        refuses=frozenset({418}),
        throttled_scope="ip",
    ),
    Dialect.family("x-sib-ratelimit", name="brevo"),
    Dialect(
        name="discord",
        body_waits=(("retry_after", "delta"),),
        signs=(
            Sign(header="x-ratelimit-global", words=_words("true"), scope="global"),
            Sign(header="x-ratelimit-scope", words=_words("global"), scope="global"),
            Sign(path="global", words=_words("true"), scope="global", throttled=None),
            Sign(header="x-ratelimit-scope", words=_words("shared"), scope="shared"),
        ),
    ),
    Dialect(name="docker", scopes=(("docker-ratelimit-source", "source"),)),
    Dialect(
        name="github",
        signs=(
            # "At least a minute, then exponentially"; the primary reset has nothing to do with it.
            Sign(
                path="message",
                words=_words("secondary rate limit", "abuse detection mechanism"),
                part=True,
                scope="secondary",
                floor_s=60.0,
            ),
            Sign(path="message", words=_words("api rate limit exceeded"), part=True),
            Sign(path="errors.type", words=_words("RATE_LIMITED"), success=True),
        ),
    ),
    Dialect(
        name="graphql",
        signs=(Sign(path="errors.extensions.code", words=_GRAPHQL, success=True),),
    ),
    Dialect(
        name="google",
        body_waits=(("error.details.retryDelay", "duration"),),
        signs=(
            Sign(path="error.errors.reason", words=_GOOGLE),
            Sign(path="error.details.reason", words=_GOOGLE),
            Sign(path="error.errors.reason", words=_GOOGLE_DAILY, should_retry=False),
        ),
    ),
    Dialect.family(
        "x-hubspot-ratelimit",
        name="hubspot",
        limit="x-hubspot-ratelimit-max",
        window="x-hubspot-ratelimit-interval-milliseconds",
        window_unit=1e-3,
    ),
    Dialect(
        name="hubspot-daily",
        limit="x-hubspot-ratelimit-daily",
        remaining="x-hubspot-ratelimit-daily-remaining",
        dimension="day",
    ),
    Dialect(
        name="imgur-user",
        limit="x-ratelimit-userlimit",
        remaining="x-ratelimit-userremaining",
        reset="x-ratelimit-userreset",
        dimension="user",
    ),
    Dialect(
        name="imgur-client",
        limit="x-ratelimit-clientlimit",
        remaining="x-ratelimit-clientremaining",
        reset="x-ratelimit-clientreset",
        dimension="client",
    ),
    Dialect.family("x-post-rate-limit", name="imgur-post", dimension="post"),
    Dialect(name="ip-api", remaining="x-rl", reset="x-ttl"),
    Dialect(
        name="kraken",
        body_waits=(("error", "tail"),),
        signs=(
            Sign(
                path="error",
                words=_words("rate limit exceeded", "throttled:"),
                part=True,
                success=True,
            ),
        ),
    ),
    Dialect(
        name="matrix",
        body_waits=(("retry_after_ms", "ms-delta"),),
        signs=(Sign(path="errcode", words=_words("M_LIMIT_EXCEEDED")),),
    ),
    Dialect(
        name="mediawiki",
        signs=(
            Sign(header="mediawiki-api-error", words=_MEDIAWIKI, success=True),
            Sign(path="error.code", words=_MEDIAWIKI, success=True),
            Sign(path="errors.code", words=_MEDIAWIKI, success=True),
        ),
    ),
    Dialect(
        name="microsoft-graph",
        signs=(
            Sign(
                path="error.code",
                words=_words("activityLimitReached", "throttledRequest", "TooManyRequests"),
            ),
        ),
    ),
    Dialect(name="openai", should_retry="x-should-retry"),
    Dialect(
        name="salesforce",
        packed=(("sforce-limit-info", quotas.usages),),
        signs=(Sign(path="errorCode", words=_words("REQUEST_LIMIT_EXCEEDED")),),
    ),
    Dialect(
        name="shopify",
        packed=(
            ("x-shopify-shop-api-call-limit", quotas.used_of_limit),
            ("x-shopify-api-call-limit", quotas.used_of_limit),
        ),
        body_packed=(("extensions.cost", quotas.query_cost),),
    ),
    Dialect(
        name="slack",
        signs=(Sign(path="error", words=_words("ratelimited", "rate_limited"), success=True),),
    ),
    Dialect(
        name="stripe",
        should_retry="stripe-should-retry",
        scopes=(("stripe-rate-limited-reason", "reason"),),
        # Another request holds the object: worth a retry, no reason to slow down the host.
        signs=(Sign(path="error.code", words=_words("lock_timeout"), throttled=False),),
    ),
    Dialect(name="telegram", body_waits=(("parameters.retry_after", "delta"),)),
    Dialect(name="zendesk", packed=(("zendesk-ratelimit-*", quotas.key_values),)),
)
