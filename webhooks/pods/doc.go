// Package pods injects sidecars into Pods while they are created. To follow one
// Pod, read Injector.decide (injector.go): it reads the head of the AdmissionReview,
// gathers which SidecarSets select the Pod (gather.go), reads the Pod, and has
// inject.Compute make a plan, with a revision that is read live if the snapshot lacks it
// (revisions.go). Verdict.write (verdict.go) answers with it.
//
// The package never decodes a Pod as a typed object and never writes one. It
// answers with JSON patch operations, so members that its libraries do not know
// survive.
package pods
