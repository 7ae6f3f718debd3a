package bench

import "net/http"

// Handler is one of the two compared handlers.
type Handler struct {
	Name string
	http.Handler
}

// Handlers returns both handlers with the same SidecarSets, the comparator first.
func Handlers(sets []map[string]any) []Handler {
	return []Handler{{"comparator", NewComparator(sets)}, {"ours", NewOurs(sets)}}
}
