package validation_test

import (
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/validation"
)

// Rule 34, for files without a cluster: the commonest faults of containers and volumes. API
// servers know all of them: test/integration/content_test.go.
func TestTheCommonestFaultsAreFoundWithoutACluster(t *testing.T) {
	const dnsLabel = "a lowercase RFC 1123 label must consist of"
	tests := map[string]validationCase{
		"a container without name and image": {spec: `containers: [{}]`, want: []string{"spec.containers[0].name: Required: give it a name", "spec.containers[0].image: Required: name the image"}},
		"a null container":                   {spec: `containers: [null]`, want: []string{"spec.containers[0].name: Required", "spec.containers[0].image: Required", "spec.containers[0].podInjectPolicy: NotSupported", "spec.containers[0].shareVolumePolicy.type: NotSupported"}},
		"a name that is no DNS label":        {spec: `containers: [{name: A_b, image: c}]`, want: []string{"spec.containers[0].name: Invalid: " + dnsLabel}},
		"one name in one list":               {spec: `containers: [{name: a, image: b}, {name: a, image: b}]`, want: []string{"spec.containers[1].name: Duplicate: names are unique across containers and initContainers"}},
		"one name in both lists":             {spec: `initContainers: [{name: a, image: b}]`, want: []string{"spec.containers[0].name: Duplicate: names are unique across containers and initContainers"}},
		"an image with white space":          {spec: `containers: [{name: a, image: " b"}]`, want: []string{"spec.containers[0].image: Invalid: must not begin or end with white space; remove it"}},
		"an undeclared mount":                {spec: `{initContainers: [{name: i, image: b, volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}], volumes: [{name: v}]}`, want: []string{"spec.initContainers[0].volumeMounts[1].name: Invalid: is not a volume of this SidecarSet; declare it in spec.volumes"}},
		"an undeclared device":               {spec: `containers: [{name: a, image: b, volumeDevices: [{name: v, devicePath: /v}]}]`, want: []string{"spec.containers[0].volumeDevices[0].name: Invalid: is not a volume of this SidecarSet"}},
		"a mount without path":               {spec: `{containers: [{name: a, image: b, volumeMounts: [{name: v}]}], volumes: [{name: v}]}`, want: []string{"spec.containers[0].volumeMounts[0].mountPath: Required: say where"}},
		"two mounts at one path":             {spec: `{containers: [{name: a, image: b, volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /a}]}], volumes: [{name: v}]}`, want: []string{"spec.containers[0].volumeMounts[1].mountPath: Invalid: must be unique in the container"}},
		"a port without number":              {spec: `containers: [{name: a, image: b, ports: [{name: web}]}]`, want: []string{"spec.containers[0].ports[0].containerPort: Required: say which port"}},
		"ports with bad numbers":             {spec: `containers: [{name: a, image: b, ports: [{containerPort: 70000, hostPort: -1}]}]`, want: []string{"spec.containers[0].ports[0].containerPort: Invalid: must be between 1 and 65535", "spec.containers[0].ports[0].hostPort: Invalid: must be between 1 and 65535"}},
		"a volume without a name":            {spec: `volumes: [{}]`, want: []string{"spec.volumes[0].name: Required: give it a name"}},
		"volumes with bad and equal names":   {spec: `volumes: [{name: v}, {name: "v v"}, {name: v}]`, want: []string{"spec.volumes[1].name: Invalid: " + dnsLabel, "spec.volumes[2].name: Duplicate: names are unique"}},
		"a volume of two kinds":              {spec: `volumes: [{name: v, hostPath: {path: /x}, emptyDir: {}}]`, want: []string{"spec.volumes[0].hostPath: Forbidden: must not be set together with emptyDir; remove one of them"}},

		"rule 27: resourcesPolicy of one that ends":   {spec: `initContainers: [{name: i, image: b, resourcesPolicy: {targetContainersMode: sum}}]`, want: []string{"spec.initContainers[0].resourcesPolicy: Invalid: only an init container with restartPolicy Always may have it; remove it, and set resources"}},
		"rule 33: a resourcesPolicy beside resources": {spec: `containers: [{name: a, image: b, resources: {limits: {cpu: 1}}, resourcesPolicy: {targetContainersMode: sum}}]`, want: []string{"spec.containers[0].resourcesPolicy: Invalid: cannot be combined with resources"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { expect(t, tc.want, validation.Create(tc.set(t), validation.Environment{})) })
	}
}

// What the rules and an API server both find is said once, in the words that have the remedy.
func TestOneProblemIsSaidOnce(t *testing.T) {
	found := validation.Create(validationCase{spec: `containers: [{name: a}]`}.set(t), validation.Environment{})
	refused := validation.Create(validationCase{spec: `containers: [{name: a}, {name: a, image: b}]`}.set(t), validation.Environment{})
	expect(t, []string{"spec.containers[0].image: Required", "spec.containers[1].name: Duplicate"}, validation.Joined(found, refused))
	lines := validation.Together([]string{"spec.a: ours; correct it"}, []string{"spec.a: theirs", "spec.b: theirs"})
	if got := strings.Join(lines, "|"); got != "spec.a: ours; correct it|spec.b: theirs" {
		t.Errorf("warnings are %s", got)
	}
}
