package sidecarsets

import (
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podsecurity"
)

// podSecurity warns about Namespaces whose Pods Pod Security refuses with these sidecars. Call it
// last: a Namespace that was created right before the SidecarSet is then known. A SidecarSet that
// injects a recorded revision into all Pods gets no warning, because its content goes into none.
func (v *validator) podSecurity(set *hub.SidecarSet) []string {
	var catalog *match.Snapshot
	if v.Current != nil {
		catalog = v.Current()
	}
	if catalog == nil {
		return nil
	}
	namespaces := podsecurity.Read(catalog, v.ExcludedNamespaces)
	if namespaces.None() {
		return nil
	}
	program, err := inject.Compile(set.Object)
	if err != nil || program.Bypassed() {
		return nil
	}
	return podsecurity.Warnings(namespaces.Refusals(program, program))
}
