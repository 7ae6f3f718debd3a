package validation_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/validation"
)

func TestAdvice(t *testing.T) {
	type object = map[string]any
	type list = []any
	both := func(cpu string) object { return object{"cpu": cpu, "memory": "1Mi"} }
	native := func(resources object) object {
		return object{"name": "a", "image": "a", "restartPolicy": "Always", "resources": resources}
	}
	plain := object{"name": "a", "image": "a", "resources": object{"limits": both("1")}}
	jobless := object{"matchExpressions": list{object{"key": "job-name", "operator": "DoesNotExist"}}}
	mounts := func(volume object) object {
		c := native(object{"limits": both("1")})
		c["volumeMounts"] = list{object{"name": "v", "mountPath": "/v"}}
		volume["name"] = "v"
		return object{"initContainers": list{c}, "volumes": list{volume}}
	}
	with := func(spec object, member string, value any) object { spec[member] = value; return spec }
	const requests, limits, jobs, local = "spec.initContainers[0].resources.requests", "spec.initContainers[0].resources.limits", "spec.containers[0]", "spec.volumes[0]"
	tests := map[string]struct {
		spec object
		want []string // fields
	}{
		"a native sidecar whose limits are its requests": {object{"initContainers": list{native(object{"limits": both("1")})}}, nil},
		"no resources":                           {object{"initContainers": list{native(object{})}}, []string{requests, limits}},
		"no memory":                              {object{"initContainers": list{native(object{"limits": object{"cpu": "1"}})}}, []string{requests, limits}},
		"requests alone":                         {object{"initContainers": list{native(object{"requests": both("1")})}}, []string{limits}},
		"limits above requests":                  {object{"initContainers": list{native(object{"requests": both("1"), "limits": both("2")})}}, []string{limits}},
		"an init container that ends":            {object{"initContainers": list{object{"name": "a", "image": "a"}}}, []string{limits}},
		"a resourcesPolicy":                      {with(object{"initContainers": list{with(native(object{}), "resourcesPolicy", object{"targetContainersMode": "sum", "resourcesExpr": object{"limits": object{"cpu": "cpu"}}})}}, "selector", jobless), nil},
		"a plain container":                      {object{"containers": list{plain}}, []string{jobs}},
		"a plain container, and no Pods of Jobs": {object{"selector": jobless, "containers": list{plain}}, nil},
		"a disk of the node":                     {mounts(object{"emptyDir": object{}}), []string{local}},
		"a directory of the node":                {mounts(object{"hostPath": object{"path": "/x"}}), []string{local}},
		"a volume in memory":                     {mounts(object{"emptyDir": object{"medium": "Memory"}}), nil},
		"a volume that is not mounted":           {object{"initContainers": list{native(object{"limits": both("1")})}, "volumes": list{object{"name": "v", "emptyDir": object{}}}}, nil},
		"a disk that may be lost": {with(mounts(object{"emptyDir": object{}}), "patchPodMetadata", list{object{"patchPolicy": "Retain",
			"annotations": object{"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "v"}}}), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.spec["selector"] == nil {
				tc.spec["selector"] = object{"matchLabels": object{"app": "web"}}
			}
			manifest := object{"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": object{"name": "a"}, "spec": tc.spec}
			var got []string
			for _, line := range validation.Advice(typed(t, fixtures.Stored(decoded(t, manifest)))) {
				field, text, _ := strings.Cut(line, ": ")
				if got = append(got, field); !remedy.MatchString(text) {
					t.Errorf("%s names no remedy", line)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}
