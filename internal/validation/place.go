package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// place is a place in a SidecarSet, where rules report what is wrong with the value.
type place struct {
	*field.Path
	errs *field.ErrorList
}

// Child is a member of the object here.
func (p place) Child(name string, more ...string) place {
	return place{p.Path.Child(name, more...), p.errs}
}

// Index is an element of the list here.
func (p place) Index(i int) place { return place{p.Path.Index(i), p.errs} }

// Key is a value of the map here.
func (p place) Key(key string) place { return place{p.Path.Key(key), p.errs} }

func (p place) add(errs ...*field.Error) { *p.errs = append(*p.errs, errs...) }

func (p place) invalid(value any, remedy string) { p.add(field.Invalid(p.Path, value, remedy)) }
func (p place) required(remedy string)           { p.add(field.Required(p.Path, remedy)) }
func (p place) forbidden(remedy string)          { p.add(field.Forbidden(p.Path, remedy)) }

// invalidBy reports what a validator of apimachinery found.
func (p place) invalidBy(value any, problems []string) {
	for _, problem := range problems {
		p.invalid(value, problem)
	}
}

func (p place) duplicate(value any, remedy string) {
	err := field.Duplicate(p.Path, value)
	err.Detail = remedy
	p.add(err)
}

// validateChoice refuses a value, an empty one too, that is not one of those supported.
func validateChoice[T ~string](value T, path place, supported ...T) {
	if !slices.Contains(supported, value) {
		path.add(field.NotSupported(path.Path, value, supported))
	}
}

// validateUnique refuses a value that is in seen, and adds it to seen.
func validateUnique[T comparable](value T, seen sets.Set[T], path place, remedy string) {
	if seen.Has(value) {
		path.duplicate(value, remedy)
	}
	seen.Insert(value)
}

// requireText refuses an empty string.
func requireText(value string, path place, remedy string) {
	if value == "" {
		path.required(remedy)
	}
}
