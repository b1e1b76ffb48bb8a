"""What the integration tests, the demo and the bench share."""
