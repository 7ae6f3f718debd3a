package hub

import (
	"maps"
	"slices"

	"github.com/sidecarset/operator/internal/jsonread"
)

// boundQuantities refuses an object of the hub version with a quantity that is expensive
// to parse. It reports whether some quantity is a JSON number.
func boundQuantities(object map[string]any) (numbers bool, err error) {
	spec, _ := object["spec"].(map[string]any)
	for _, list := range []string{"containers", "initContainers", "volumes"} {
		some, err := boundIn(spec[list], []any{"spec", list})
		if err != nil {
			return false, err
		}
		numbers = numbers || some
	}
	return numbers, nil
}

// boundIn looks at the quantities that a value has at any depth.
func boundIn(value any, path []any) (numbers bool, err error) {
	note := func(some bool, failed error) bool {
		numbers, err = numbers || some, failed
		return err == nil
	}
	switch value := value.(type) {
	case []any:
		for i, elem := range value {
			if !note(boundIn(elem, append(path, i))) {
				return numbers, err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			at := append(path, name)
			list, isMap := value[name].(map[string]any)
			switch {
			case name == "resourcesPolicy": // its limits and requests are expressions
			case isMap && (name == "limits" || name == "requests"):
				for _, resource := range slices.Sorted(maps.Keys(list)) {
					if !note(boundQuantity(list[resource], append(at, resource))) {
						return numbers, err
					}
				}
			case name == "sizeLimit" || name == "divisor":
				if !note(boundQuantity(value[name], at)) {
					return numbers, err
				}
			case !note(boundIn(value[name], at)):
				return numbers, err
			}
		}
	}
	return numbers, err
}

func boundQuantity(value any, path []any) (number bool, err error) {
	switch value := value.(type) {
	case string:
		if !jsonread.IsShortQuantity(value) {
			return false, &MemberError{fieldPath(path), jsonread.ErrLongQuantity}
		}
	case float64, int64:
		return true, nil
	}
	return false, nil
}
