package inject

import "slices"

// Exclusions names the Namespaces whose Pods are left alone.
type Exclusions []string

// Namespace reports whether the Pods of a Namespace are left alone.
func (e Exclusions) Namespace(name string) bool { return slices.Contains(e, name) }

// Eligible reports whether admission can inject a Pod at all. It cannot inject a mirror
// Pod, the API server's copy of a static Pod, which the kubelet reads from a file: Compute
// skips it.
func (e Exclusions) Eligible(namespace string, mirror bool) bool {
	return !mirror && !e.Namespace(namespace)
}
