"""A trial, who runs it and where: specification, result, worker, coordinator, executors."""
