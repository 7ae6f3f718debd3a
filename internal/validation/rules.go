package validation

import (
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ifSet applies a rule to a value that may be absent.
func ifSet[T any](value *T, path place, rule func(*T, place)) {
	if value != nil {
		rule(value, path)
	}
}

// validateValue refuses a value that is not one of those supported. A nil or empty value is
// absent, and the API server fills it in.
func validateValue[T ~string](value *T, path place, supported ...T) {
	if value != nil && *value != "" {
		validateChoice(*value, path, supported...)
	}
}

// requireValue is validateValue for a value that the API server does not fill in.
func requireValue[T ~string](value T, path place, supported ...T) {
	if value == "" {
		last := len(supported) - 1
		names := make([]string, len(supported))
		for i, name := range supported {
			names[i] = string(name)
		}
		path.required("use " + strings.Join(names[:last], ", ") + " or " + names[last])
		return
	}
	validateChoice(value, path, supported...)
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

// member is one of several of which exactly one may be set.
type member struct {
	name string
	set  bool
}

// alternatives are the members of an object that are objects themselves.
func alternatives(object any) (list []member) {
	for name, f := range fieldsOf(reflect.Indirect(reflect.ValueOf(object))) {
		if f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct {
			list = append(list, member{name, !f.IsNil()})
		}
	}
	return list
}

// validateOneOf requires exactly one of the members of the value at path. If none is set, it
// reports Required at path itself: see withoutGuesses.
func validateOneOf(path place, among ...member) {
	var names []string
	first := ""
	for _, m := range among {
		names = append(names, m.name)
		switch {
		case m.set && first == "":
			first = m.name
		case m.set:
			path.Child(m.name).forbidden("must not be set together with " + first + "; remove one of them")
		}
	}
	if first == "" {
		path.required("set one of " + strings.Join(names, ", "))
	}
}

// requireText refuses an empty string, and what validators of apimachinery refuse.
func requireText(value string, path place, remedy string, validators ...func(string) []string) {
	if value == "" {
		path.required(remedy)
	}
	for _, problems := range validators {
		validateText(&value, path, problems)
	}
}

// validateText refuses what a validator of apimachinery refuses. A nil or empty text is absent.
func validateText(value *string, path place, problems func(string) []string) {
	if value != nil && *value != "" {
		path.invalidBy(*value, problems(*value))
	}
}

func validateNotNegative(value int64, path place) {
	if value < 0 {
		path.invalid(value, "must be 0 or more; correct or remove it")
	}
}

// validateByte checks a number that the API server limits to one byte.
func validateByte(value int32, path place) {
	if value < 0 || value > math.MaxUint8 {
		path.invalid(value, "must be from 0 to 255; correct it")
	}
}

// validateMode checks the permission bits of a file.
func validateMode(mode *int32, path place) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		path.invalid(*mode, "must be permission bits, such as 0644 in YAML or 420 in JSON; correct or remove it")
	}
}

// validateNoBacksteps refuses a path that leaves its directory.
func validateNoBacksteps(path string, at place) {
	if slices.Contains(strings.Split(path, "/"), "..") {
		at.invalid(path, "must not contain '..'; write the path without it")
	}
}

// validateDescendingPath checks a path inside a volume.
func validateDescendingPath(path string, at place) {
	if strings.HasPrefix(path, "/") {
		at.invalid(path, "must be relative to the volume; remove the leading '/'")
		return
	}
	validateNoBacksteps(path, at)
}

// validateFilePath checks the path of a file that a volume creates.
func validateFilePath(path string, at place) {
	requireText(path, at, "say where in the volume the file goes")
	validateDescendingPath(path, at)
	if strings.HasPrefix(path, "..") && !slices.Contains(strings.Split(path, "/"), "..") {
		at.invalid(path, "must not start with '..'; choose another name")
	}
}
