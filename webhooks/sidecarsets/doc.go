// Package sidecarsets answers the two webhooks for SidecarSets. The defaulter
// (defaulter.go) fills in defaults and writes hashes. The validator (validator.go)
// does four things in this order: it reads the SidecarSet (written.go), judges it by
// the rules of internal/validation, asks for the rights of its author (requester.go),
// and has API servers call us for its Pods (widen.go).
//
// A ValueBound (values.go) refuses reviews that would become too many values, before
// they are decoded.
package sidecarsets
