// Package sidecarsets answers the two webhooks for SidecarSets. The defaulter
// (defaulter.go) fills in defaults and writes hashes. The validator (validator.go)
// does four things in this order: it reads the SidecarSet (written.go), judges it by
// the rules of internal/validation, asks whether its requester has the rights that it takes
// (requester.go), and makes API servers call us for its Pods (register.go).
//
// A ValueBound (values.go) refuses a review that has too many values, before the review is
// decoded.
package sidecarsets
