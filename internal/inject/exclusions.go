package inject

import "slices"

// Exclusions names the Namespaces whose Pods are left alone. Together with
// Eligible it is what admission, the tally and a preview agree on before any
// selector counts.
type Exclusions []string

// Namespace reports whether the Pods of a Namespace are left alone.
func (e Exclusions) Namespace(name string) bool { return slices.Contains(e, name) }

// Eligible reports whether a Pod can be injected at all. A mirror Pod cannot: it
// is the API server's copy of a static Pod, which the kubelet reads from a file.
func (e Exclusions) Eligible(namespace string, mirror bool) bool {
	return !mirror && !e.Namespace(namespace)
}
