"""What a training run reads: weighted sources of documents, packed into rows, in an order that can be resumed."""
