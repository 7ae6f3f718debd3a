package bench

import "net/http"

// Handler is one of the two that are compared.
type Handler struct {
	Name string
	http.Handler
}

// Handlers are both, over the same SidecarSets: the comparator first.
func Handlers(sets []map[string]any) []Handler {
	return []Handler{{"comparator", NewComparator(sets, Now)}, {"ours", NewOurs(sets, Now)}}
}
