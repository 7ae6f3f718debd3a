package validation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/validation"
)

func TestTheSizeOfASpecIsBounded(t *testing.T) {
	of := func(kib int) *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("long").Select("app", "web").Container("side", "side:v1").Env("LONG", strings.Repeat("x", kib<<10))
	}
	tests := map[string]struct {
		set, old *fixtures.SidecarSetBuilder
		refused  bool
	}{
		"200 KiB":                                     {set: of(200)},
		"300 KiB":                                     {set: of(300), refused: true},
		"200 KiB that become 300":                     {set: of(300), old: of(200), refused: true},
		"300 KiB that were stored":                    {set: of(300), old: of(300)},
		"300 KiB that were stored become 299":         {set: of(299), old: of(300)},
		"300 KiB that were stored become 301":         {set: of(301), old: of(300), refused: true},
		"300 KiB that were stored, another image too": {set: of(300).With("image", "side:v2"), old: of(300)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			errs := validation.Bounds(tc.set.Obj(), nil, tc.set.Map(), nil)
			if tc.old != nil {
				errs = validation.Bounds(tc.set.Obj(), tc.old.Obj(), tc.set.Map(), tc.old.Map())
			}
			if refused := len(errs) > 0; refused != tc.refused {
				t.Fatalf("problems are %v", errs)
			}
			if tc.refused && (errs[0].Field != "spec" || !strings.Contains(errs[0].Error(), "ConfigMaps")) {
				t.Errorf("the problem is %v", errs[0])
			}
		})
	}
}

func TestTheSizeOfSelectorsIsBounded(t *testing.T) {
	choosing := func(operator string, values int) map[string]any {
		list := make([]any, values)
		for i := range list {
			list[i] = fmt.Sprint("v", i)
		}
		return map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": operator, "values": list}}}
	}
	selecting := func(values int) *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("long").Container("side", "side:v1").Spec("selector", choosing("NotIn", values))
	}
	updating := func(strategy map[string]any) *fixtures.SidecarSetBuilder {
		return selecting(1).Spec("updateStrategy", strategy)
	}
	weight := func(values int) any { return map[string]any{"weight": 1, "matchSelector": choosing("In", values)} }
	named := func(version int) *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("long").Select("app", "web").Container("side", fmt.Sprint("side:v", version))
	}
	longNames := func(n int) map[string]any { // 240 bytes each
		all := map[string]any{}
		for i := range n {
			all[fmt.Sprintf("%0117d.example.com/%02d%055d", 0, i, 0)] = strings.Repeat("x", 45)
		}
		return map[string]any{"matchLabels": all}
	}
	labels := map[string]any{}
	for i := range 1001 {
		labels[fmt.Sprint("l", i)] = "x"
	}
	tests := map[string]struct {
		set, old *fixtures.SidecarSetBuilder
		field    string
	}{
		"999 values":                 {set: selecting(999)},
		"16,000 bytes of names":      {set: named(1).Spec("namespaceSelector", longNames(66))},
		"more":                       {set: named(1).Spec("namespaceSelector", longNames(67)), field: "spec.namespaceSelector"},
		"more, in the other one":     {set: named(1).Spec("selector", longNames(67)), field: "spec.selector"},
		"more together":              {set: named(1).Spec("selector", longNames(34)).Spec("namespaceSelector", longNames(33)), field: "spec.selector"},
		"more that were stored":      {set: named(1).Spec("selector", longNames(67)), old: named(2).Spec("selector", longNames(67))},
		"more that become fewer":     {set: named(1).Spec("selector", longNames(67)), old: named(1).Spec("selector", longNames(68))},
		"more that become longer":    {set: named(1).Spec("selector", longNames(68)), old: named(1).Spec("selector", longNames(67)), field: "spec.selector"},
		"1,000 values":               {set: selecting(1000), field: "spec.selector"},
		"98,000 values":              {set: selecting(98_000), field: "spec.selector"},
		"many that were stored":      {set: selecting(2000), old: selecting(2000)},
		"many that become fewer":     {set: selecting(1999), old: selecting(2000)},
		"many that become more":      {set: selecting(2001), old: selecting(2000), field: "spec.selector"},
		"few that become many":       {set: selecting(2000), old: selecting(2), field: "spec.selector"},
		"namespaces":                 {set: selecting(1).Spec("namespaceSelector", choosing("In", 1000)), field: "spec.namespaceSelector"},
		"labels":                     {set: selecting(1).Spec("selector", map[string]any{"matchLabels": labels}), field: "spec.selector"},
		"of the update":              {set: updating(map[string]any{"selector": choosing("In", 1000)}), field: "spec.updateStrategy.selector"},
		"weights that are short":     {set: updating(map[string]any{"priorityStrategy": map[string]any{"weightPriority": []any{weight(400), weight(500)}}})},
		"weights that are too many":  {set: updating(map[string]any{"priorityStrategy": map[string]any{"weightPriority": []any{weight(500), weight(500)}}}), field: "spec.updateStrategy.priorityStrategy.weightPriority"},
		"one that had no such field": {set: updating(map[string]any{"selector": choosing("In", 1000)}), old: selecting(1), field: "spec.updateStrategy.selector"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			errs := validation.Bounds(tc.set.Obj(), nil, nil, nil)
			if tc.old != nil {
				errs = validation.Bounds(tc.set.Obj(), tc.old.Obj(), nil, nil)
			}
			if len(errs) != min(1, len(tc.field)) || tc.field != "" && (errs[0].Field != tc.field || len(errs[0].Error()) > 300) {
				t.Errorf("problems are %v, want one at %q", errs, tc.field)
			}
		})
	}
}
