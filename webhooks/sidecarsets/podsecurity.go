package sidecarsets

import (
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podsecurity"
)

// podSecurity warns about Namespaces whose Pods Pod Security refuses with these sidecars. Call it
// last: a Namespace that was created right before the SidecarSet is then known. A SidecarSet that
// injects a recorded revision into all Pods gets no warning, because its current revision goes into none.
func (v *validator) podSecurity(set *hub.SidecarSet) []string {
	var store *match.Snapshot
	if v.Current != nil {
		store = v.Current()
	}
	if store == nil {
		return nil
	}
	namespaces := podsecurity.Read(store, v.ExcludedNamespaces)
	if namespaces.None() {
		return nil
	}
	compiled, err := inject.Compile(set.Object)
	if err != nil || compiled.Bypassed() {
		return nil
	}
	return podsecurity.Warnings(namespaces.Refusals(compiled, compiled))
}
