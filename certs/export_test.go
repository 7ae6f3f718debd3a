package certs

import "errors"

// Missing returns what the leader reports of the targets that are not there.
func (p *Published) Missing() error { return errors.Join(p.snapshot().missing...) }

// OldestFirst is oldestFirst.
var OldestFirst = oldestFirst
