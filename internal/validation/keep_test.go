package validation_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/validation"
)

// A problem belongs to the element that has it, wherever the element is in its list.
func TestAnUpdateKeepsTheProblemsOfElementsThatMove(t *testing.T) {
	const (
		good = `{name: good, emptyDir: {}}`
		bad  = `{name: bad, hostPath: {path: /a/../b}}`
		also = `{name: also, hostPath: {path: /a/../b}}`
	)
	volumes := func(list string) string { return "volumes: [" + list + "]" }
	container := func(members string) string { return "containers: [{name: a, image: b, " + members + "}]" }
	volume := volumes(good) + "\n"
	tests := map[string]struct {
		old, spec   string
		worse, kept []string // paths
	}{
		"where it was":               {volumes(bad), volumes(bad), nil, []string{"spec.volumes[0].hostPath.path"}},
		"behind a new one":           {volumes(bad), volumes(good + "," + bad), nil, []string{"spec.volumes[1].hostPath.path"}},
		"in front of the others":     {volumes(good + "," + bad), volumes(bad + "," + good), nil, []string{"spec.volumes[0].hostPath.path"}},
		"when one before it is gone": {volumes(good + "," + bad), volumes(bad), nil, []string{"spec.volumes[0].hostPath.path"}},
		"another one in its place":   {volumes(bad), volumes(also), []string{"spec.volumes[0].hostPath.path"}, nil},
		"one more in front of it":    {volumes(bad), volumes(also + "," + bad), []string{"spec.volumes[0].hostPath.path"}, []string{"spec.volumes[1].hostPath.path"}},
		"one name twice": {volumes(good + "," + good), volumes(bad + "," + good + "," + good), []string{"spec.volumes[0].hostPath.path"},
			[]string{"spec.volumes[2].name"}},
		"one name three times": {volumes(good + "," + good), volumes(good + "," + good + "," + good), []string{"spec.volumes[2].name"},
			[]string{"spec.volumes[1].name"}},
		"a variable of a container": {container(`env: [{name: A, valueFrom: {}}]`), container(`env: [{name: B}, {name: A, valueFrom: {}}]`), nil,
			[]string{"spec.containers[0].env[1].valueFrom"}},
		"another mount of one volume": {
			volume + container(`volumeMounts: [{name: good, mountPath: /a, subPath: ../x}]`),
			volume + container(`volumeMounts: [{name: good, mountPath: /b, subPath: ../x}, {name: good, mountPath: /a, subPath: ../x}]`),
			[]string{"spec.containers[0].volumeMounts[0].subPath"}, []string{"spec.containers[0].volumeMounts[1].subPath"},
		},
		"an element without a name": {
			container(`envFrom: [{prefix: "="}]`), container(`envFrom: [{prefix: "="}]`), nil,
			[]string{"spec.containers[0].envFrom[0].prefix", "spec.containers[0].envFrom[0]"},
		},
		"a key of a map": {
			container(`resources: {limits: {"a[0].b": 1}}`), container(`resources: {limits: {"a[0].b": 1}}`), nil,
			[]string{"spec.containers[0].resources.limits[a[0].b]"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			old, updated := validationCase{spec: tc.old}, validationCase{spec: tc.spec}
			env := validation.Environment{Object: updated.object(t)}
			errs := validation.Update(updated.set(t), old.set(t), env)
			env.Object = old.object(t)
			worse, kept := validation.Keep(errs, updated.object(t), old.set(t), env)
			var gotWorse, gotKept []string
			for _, err := range worse {
				gotWorse = append(gotWorse, err.Field)
			}
			for _, err := range kept {
				gotKept = append(gotKept, err.Field)
			}
			if diff := cmp.Diff([][]string{tc.worse, tc.kept}, [][]string{gotWorse, gotKept}); diff != "" {
				t.Errorf("worse, and kept (-want +got):\n%s\n%v", diff, errs)
			}
		})
	}
}
