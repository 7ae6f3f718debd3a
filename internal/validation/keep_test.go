package validation_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sidecarset/operator/internal/validation"
)

// A problem belongs to the element that has it, wherever the element is in its list.
func TestAnUpdateKeepsTheProblemsOfElementsThatMove(t *testing.T) {
	const (
		good = `{name: good, emptyDir: {}}`
		bad  = `{name: bad, emptyDir: {}, hostPath: {path: /a}}`
		also = `{name: also, emptyDir: {}, hostPath: {path: /a}}`
	)
	volumes := func(list string) string { return "volumes: [" + list + "]" }
	container := func(members string) string { return "containers: [{name: a, image: b, " + members + "}]" }
	tests := map[string]struct {
		old, spec   string
		worse, kept []string // paths
	}{
		"where it was":               {volumes(bad), volumes(bad), nil, []string{"spec.volumes[0].hostPath"}},
		"behind a new one":           {volumes(bad), volumes(good + "," + bad), nil, []string{"spec.volumes[1].hostPath"}},
		"in front of the others":     {volumes(good + "," + bad), volumes(bad + "," + good), nil, []string{"spec.volumes[0].hostPath"}},
		"when one before it is gone": {volumes(good + "," + bad), volumes(bad), nil, []string{"spec.volumes[0].hostPath"}},
		"another one in its place":   {volumes(bad), volumes(also), []string{"spec.volumes[0].hostPath"}, nil},
		"one more in front of it":    {volumes(bad), volumes(also + "," + bad), []string{"spec.volumes[0].hostPath"}, []string{"spec.volumes[1].hostPath"}},
		"one name twice": {volumes(good + "," + good), volumes(bad + "," + good + "," + good), []string{"spec.volumes[0].hostPath"},
			[]string{"spec.volumes[2].name"}},
		"one name three times": {volumes(good + "," + good), volumes(good + "," + good + "," + good), []string{"spec.volumes[2].name"},
			[]string{"spec.volumes[1].name"}},
		"a port of a container": {container(`ports: [{containerPort: 70000}]`), container(`ports: [{containerPort: 1}, {containerPort: 70000}]`), nil,
			[]string{"spec.containers[0].ports[1].containerPort"}},
		"another mount of one volume": {
			container(`volumeMounts: [{name: none, mountPath: /a}]`),
			container(`volumeMounts: [{name: none, mountPath: /b}, {name: none, mountPath: /a}]`),
			[]string{"spec.containers[0].volumeMounts[0].name"}, []string{"spec.containers[0].volumeMounts[1].name"},
		},
		"an element without a name": {
			container(`ports: [{hostPort: -1}]`), container(`ports: [{hostPort: -1}]`), nil,
			[]string{"spec.containers[0].ports[0].containerPort", "spec.containers[0].ports[0].hostPort"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			old, updated := validationCase{spec: tc.old}, validationCase{spec: tc.spec}
			env := validation.Environment{Object: updated.object(t)}
			errs := validation.Update(updated.set(t), old.set(t), env)
			env.Object = old.object(t)
			worse, kept := validation.Keep(errs, updated.object(t), old.set(t), env, nil)
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

// What an API server refuses is kept like what the rules refuse.
func TestAnUpdateKeepsWhatTheAPIServerRefusesOfBoth(t *testing.T) {
	of := func(path, detail string) *field.Error {
		return &field.Error{Type: field.ErrorTypeInvalid, Field: path, BadValue: field.OmitValueType{}, Detail: detail}
	}
	old, updated := validationCase{spec: `containers: [{name: a, image: b}]`}, validationCase{spec: `containers: [{name: c, image: d}, {name: a, image: b}]`}
	const key = "].resources.limits[a[0].b]"
	now := field.ErrorList{of("spec.containers[1"+key, "too bad"), of("spec.containers[0"+key, "too bad"), of("spec.containers[1"+key, "worse")}
	worse, kept := validation.Keep(now, updated.object(t), old.set(t), validation.Environment{Object: old.object(t)}, field.ErrorList{of("spec.containers[0"+key, "too bad")})
	if diff := cmp.Diff([]field.ErrorList{now[1:], now[:1]}, []field.ErrorList{worse, kept}); diff != "" {
		t.Errorf("worse, and kept (-want +got):\n%s", diff)
	}
}
