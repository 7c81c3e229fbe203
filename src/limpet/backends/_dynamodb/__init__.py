"""The parts of the DynamoDB backend."""
