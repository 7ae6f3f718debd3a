// Package defaults knows what the SidecarSet webhook fills in. The rules are a
// frozen table of our own: a SidecarSet's hash is computed after defaulting, so
// what a newer Kubernetes would default is not defaulted here. It works on
// decoded JSON and never looks at a member that it does not know.
package defaults

import (
	"maps"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
)

// MaxOperations is how many operations an API server should have to apply. A SidecarSet of
// twenty containers, of fifty members each, needs a few hundred.
const MaxOperations = 10_000

// Apply defaults a SidecarSet of either version in place and returns the same
// edits as JSON patch operations in application order. A member is added, or
// replaced where it is null or holds the zero value that means "not set"; an
// absent parent is added whole. Applying again returns no operations.
//
// A member of the wrong type is left alone, with all it contains, for a decoder
// to refuse. Values of operations may share memory with the object: render them
// before changing it again.
//
// If there are more operations than MaxOperations, Apply returns the first
// MaxOperations+1 of them: a caller that sends them has to refuse the object.
func Apply(object map[string]any) []jsonpatch.Operation {
	e := &edits{}
	root := node{members: object, edits: e}
	defaultSpec(root.ensure("spec"))
	status := root.child("status")
	for _, counter := range []string{"matchedPods", "updatedPods", "readyPods"} {
		status.absent(counter, int64(0)) // the CRD's schema requires it
	}
	return e.operations
}

// Annotate sets annotations in place and returns the edits, as Apply does.
func Annotate(object map[string]any, wanted map[string]string) []jsonpatch.Operation {
	e := &edits{}
	metadata := node{members: object, edits: e}.ensure("metadata")
	if metadata.members["annotations"] == nil {
		delete(metadata.members, "annotations") // a null
	}
	annotations := metadata.ensure("annotations")
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if annotations.members[key] != wanted[key] {
			annotations.set(key, wanted[key])
		}
	}
	return e.operations
}

func defaultSpec(spec node) {
	requireSelector(spec.child("selector"))
	requireSelector(spec.child("namespaceSelector"))
	for c := range spec.elements("initContainers") {
		c.unset("podInjectPolicy", "AfterAppContainer")
		defaultContainer(c)
	}
	for c := range spec.elements("containers") {
		c.unset("podInjectPolicy", "BeforeAppContainer")
		defaultContainer(c)
	}
	for v := range spec.elements("volumes") {
		defaultVolume(v)
	}
	defaultUpdateStrategy(spec.ensure("updateStrategy"))
	spec.child("injectionStrategy").child("revision").unset("policy", "Always")
	spec.absent("revisionHistoryLimit", int64(10))
	for entry := range spec.elements("patchPodMetadata") {
		entry.unset("patchPolicy", "Retain")
	}
}

func defaultUpdateStrategy(strategy node) {
	strategy.unset("type", "RollingUpdate")
	requireSelector(strategy.child("selector"))
	strategy.absent("partition", int64(0))
	strategy.absent("maxUnavailable", int64(1))
	requirePriority(strategy.child("priorityStrategy"))
	for term := range strategy.elements("scatterStrategy") {
		term.absent("key", "")
		term.absent("value", "")
	}
}

// The functions below write the zero value of members that the CRD's schema requires, but
// that a user of OpenKruise may omit: its webhook rewrites the whole object
// before the API server checks the schema, which has the same effect.

func requirePriority(priority node) {
	for term := range priority.elements("orderPriority") {
		term.absent("orderedKey", "")
	}
	for term := range priority.elements("weightPriority") {
		term.absent("weight", int64(0))
		requireSelector(term.ensure("matchSelector"))
	}
}

func requireSelector(selector node) {
	for expression := range selector.elements("matchExpressions") {
		expression.absent("key", "")
		expression.absent("operator", "")
	}
}
