"""The harness: experiments as frozen specs, a plan, worker processes, records, statistics."""
