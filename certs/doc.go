// Package certs supplies the certificate that the operator's webhooks serve and the CA bundle that API servers check it against.
//
// It knows how a CA is made, kept in a Secret and rotated, how a leaf is issued, and which objects tell API servers which CAs to
// trust. Pure functions of certificates and a time decide (pki.go, secret.go, remove.go, verdict.go). The rest reads the API
// server, calls these functions, and writes.
//
// It does not know what is served with the certificate, or which Pod webhooks there are. It writes the caBundle of three objects
// of the manifests, and no other field of them; package registration writes the shards' bundles. It does not elect a leader: the manager
// that runs the leader's runnables does. Private keys and the content of Secrets never reach a log, an event or an error.
//
// # How a CA is changed without a failed call
//
// The next CA is published long before it signs. Trust is added immediately and removed late.
//
//   - The leader alone writes the Secret: the pair that signs, the next pair, and the certificate that signed before (secret.go,
//     keeper.go).
//   - The leader alone writes bundles. It adds the CAs of the Secret immediately. It removes others when every bundle has held the CAs of
//     the Secret for five minutes (remove.go, publisher.go).
//   - A replica serves a leaf of another CA when every bundle has accepted it for two minutes (leaves.go).
//   - A replica that starts is ready when API servers are sure to accept its leaf (verdict.go).
//
// docs/design/0004-certificates.md says why each rule is there.
package certs
