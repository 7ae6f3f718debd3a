// Package pods injects sidecars into Pods while they are created. To follow one
// Pod, read Injector.decide (injector.go): it reads the head of the AdmissionReview, makes
// sure that the snapshot has observed what the path of the call requires, gathers the SidecarSets
// that select the Pod (gather.go), reads the Pod, and has inject.Compute make a plan. If the
// snapshot lacks a revision, it looks up the revision live (revisions.go). verdict.write (verdict.go) answers with the plan.
//
// The package never decodes a Pod as a typed object and never writes one. It
// answers with JSON patch operations, so members that its libraries do not know
// survive.
package pods
