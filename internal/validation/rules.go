package validation

import (
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateValue refuses a value that is none of those supported. An empty one
// is absent, for the API server to fill in.
func validateValue[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	if value == "" {
		return nil
	}
	return validateChoice(value, path, supported...)
}

// requireValue is validateValue of a value that the API server does not fill in.
func requireValue[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	if value == "" {
		last := len(supported) - 1
		names := make([]string, len(supported))
		for i, name := range supported {
			names[i] = string(name)
		}
		return field.ErrorList{field.Required(path, "use "+strings.Join(names[:last], ", ")+" or "+names[last])}
	}
	return validateChoice(value, path, supported...)
}

// validateChoice refuses a value, an empty one too, that is none of those supported.
func validateChoice[T ~string](value T, path *field.Path, supported ...T) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, supported)}
}

// member is one of several of which exactly one may be set.
type member struct {
	name string
	set  bool
}

// alternatives are the members of an object that are objects themselves.
func alternatives(object any) (list []member) {
	v := reflect.Indirect(reflect.ValueOf(object))
	for name, f := range fieldsOf(v.Type()) {
		if f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct {
			list = append(list, member{name, !v.FieldByIndex(f.Index).IsNil()})
		}
	}
	return list
}

// validateOneOf wants exactly one of the members of the value at path. That none
// is set is reported as Required at path itself, see withoutGuesses.
func validateOneOf(path *field.Path, among ...member) field.ErrorList {
	var errs field.ErrorList
	var names []string
	first := ""
	for _, m := range among {
		names = append(names, m.name)
		switch {
		case m.set && first == "":
			first = m.name
		case m.set:
			errs = append(errs, field.Forbidden(path.Child(m.name), "may not stand beside "+first+"; remove one of them"))
		}
	}
	if first == "" {
		return field.ErrorList{field.Required(path, "set one of "+strings.Join(names, ", "))}
	}
	return errs
}

// requireText refuses an empty string.
func requireText(value string, path *field.Path, remedy string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, remedy)}
	}
	return nil
}

// invalid turns what a validator of apimachinery found into errors.
func invalid(path *field.Path, value any, problems []string) field.ErrorList {
	var errs field.ErrorList
	for _, problem := range problems {
		errs = append(errs, field.Invalid(path, value, problem))
	}
	return errs
}

func validateObjectName(name string, path *field.Path, remedy string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, remedy)}
	}
	return invalid(path, name, validation.IsDNS1123Subdomain(name))
}

func validateNotNegative(value int64, path *field.Path) field.ErrorList {
	if value >= 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "must be 0 or more; correct or remove it")}
}

// validateByte checks a number for which the API server has one byte.
func validateByte(value int32, path *field.Path) field.ErrorList {
	if value >= 0 && value <= math.MaxUint8 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "must be from 0 to 255; correct it")}
}

// validateMode checks the permission bits of a file.
func validateMode(mode *int32, path *field.Path) field.ErrorList {
	if mode == nil || *mode >= 0 && *mode <= 0o777 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *mode, "must be permission bits, such as 0644 in YAML or 420 in JSON; correct or remove it")}
}

// validateNoBacksteps refuses a path that leaves its directory.
func validateNoBacksteps(path string, at *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(path, "/"), "..") {
		return field.ErrorList{field.Invalid(at, path, "must not contain '..'; write the path without it")}
	}
	return nil
}

// validateDescendingPath checks a path inside a volume.
func validateDescendingPath(path string, at *field.Path) field.ErrorList {
	if strings.HasPrefix(path, "/") {
		return field.ErrorList{field.Invalid(at, path, "must be relative to the volume; remove the leading '/'")}
	}
	return validateNoBacksteps(path, at)
}

// validateFilePath checks the path of a file that a volume creates.
func validateFilePath(path string, at *field.Path) field.ErrorList {
	if errs := requireText(path, at, "say where in the volume the file goes"); errs != nil {
		return errs
	}
	errs := validateDescendingPath(path, at)
	if len(errs) == 0 && strings.HasPrefix(path, "..") {
		errs = append(errs, field.Invalid(at, path, "must not start with '..'; choose another name"))
	}
	return errs
}

// duplicate is field.Duplicate with a remedy.
func duplicate(path *field.Path, value any, remedy string) *field.Error {
	err := field.Duplicate(path, value)
	err.Detail = remedy
	return err
}
