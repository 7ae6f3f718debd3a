package server

// DefaultLimits are for tests that change only a time.
var DefaultLimits = defaultLimits
