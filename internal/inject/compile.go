package inject

// compiled holds the parts of a Program that are the same for every Pod.
type compiled struct{}
