"""From features to an index: the plan, the working directory, the tasks and who runs them."""
