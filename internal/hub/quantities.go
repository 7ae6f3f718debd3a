package hub

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sidecarset/operator/internal/jsonread"
)

// boundQuantities refuses an object of the hub version with a quantity that is expensive to
// parse. A quantity that is a JSON number is not: decode writes it with few digits.
func boundQuantities(object map[string]any) error {
	spec, _ := object["spec"].(map[string]any)
	for _, list := range []string{"containers", "initContainers", "volumes"} {
		if err := boundIn(spec[list], field.NewPath("spec", list)); err != nil {
			return err
		}
	}
	return nil
}

// boundIn looks at the quantities that a value has at any depth.
func boundIn(value any, path *field.Path) error {
	switch value := value.(type) {
	case []any:
		for i, elem := range value {
			if err := boundIn(elem, path.Index(i)); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if err := boundMember(name, value[name], path.Child(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func boundMember(name string, value any, path *field.Path) error {
	list, isMap := value.(map[string]any)
	switch {
	case name == "resourcesPolicy": // its limits and requests are expressions
	case isMap && (name == "limits" || name == "requests"):
		for _, resource := range slices.Sorted(maps.Keys(list)) {
			if err := boundQuantity(list[resource], path.Child(resource)); err != nil {
				return err
			}
		}
	case name == "sizeLimit" || name == "divisor":
		return boundQuantity(value, path)
	default:
		return boundIn(value, path)
	}
	return nil
}

func boundQuantity(value any, path *field.Path) error {
	if text, ok := value.(string); ok && !jsonread.IsShortQuantity(text) {
		return &MemberError{path.String(), jsonread.ErrLongQuantity}
	}
	return nil
}
