"""HTTP: what servers say of their limits, when to try again, and the clients that keep to both.

Pure are `signals` and the rooms it reads with, `retry`, `backoff`, `budget`, `pace` and `recovery`.
`call` is the engine, the same for every library; `middleware`, `session` and `transport` send.
"""
