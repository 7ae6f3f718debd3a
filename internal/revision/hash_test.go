package revision

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// vector is a spec together with the results of OpenKruise 1.9. The specs are written out as
// they are after defaulting.
type vector struct {
	spec           string
	text           string // the preimage
	hash, bareHash string
}

var referenceVectors = map[string]vector{
	"one container": {
		spec: `
containers:
- name: agent
  image: busybox:1.36
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  imagePullPolicy: IfNotPresent
  podInjectPolicy: BeforeAppContainer
  upgradeStrategy: {upgradeType: ColdUpgrade}
  shareVolumePolicy: {type: disabled}
`,
		text:     `{"containers":[{"name":"agent","image":"busybox:1.36","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","podInjectPolicy":"BeforeAppContainer","upgradeStrategy":{"upgradeType":"ColdUpgrade"},"shareVolumePolicy":{"type":"disabled"}}]}`,
		hash:     "vcv9449744252484czf45xb572z8zbcwvc7c5b5cx85c44f2wf2964d88c5zd944",
		bareHash: "62258bb8d4vv7w584244bd5df277d4vw9fbf49c99967447fxw5z4f4956b97fz4",
	},
	"a plain init container is ignored, HTML is escaped, quantities are canonical": {
		spec: `
initContainers: [{name: plain-init, image: busybox}]
containers:
- name: mesh
  image: example.com/mesh:v1
  args: ["--filter=a<b&c"]
  env: [{name: NODE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}}]
  ports: [{containerPort: 80, protocol: TCP}]
  resources: {limits: {cpu: 1000m, memory: 1024Mi}}
  volumeMounts: [{name: log, mountPath: /var/log}]
  livenessProbe: {httpGet: {path: /, port: 8080, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  imagePullPolicy: IfNotPresent
  podInjectPolicy: BeforeAppContainer
  upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: example.com/empty:v1}
  transferEnv: [{sourceContainerName: main, envName: PROXY_IP}]
  shareVolumePolicy: {type: enabled}
  shareVolumeDevicePolicy: {type: enabled}
`,
		text:     `{"containers":[{"name":"mesh","image":"example.com/mesh:v1","args":["--filter=a\u003cb\u0026c"],"ports":[{"containerPort":80,"protocol":"TCP"}],"env":[{"name":"NODE","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"spec.nodeName"}}}],"resources":{"limits":{"cpu":"1","memory":"1Gi"}},"volumeMounts":[{"name":"log","mountPath":"/var/log"}],"livenessProbe":{"httpGet":{"path":"/","port":8080,"scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","podInjectPolicy":"BeforeAppContainer","upgradeStrategy":{"upgradeType":"HotUpgrade","hotUpgradeEmptyImage":"example.com/empty:v1"},"shareVolumePolicy":{"type":"enabled"},"shareVolumeDevicePolicy":{"type":"enabled"},"transferEnv":[{"sourceContainerName":"main","envName":"PROXY_IP"}]}]}`,
		hash:     "c6www25889dw5w6dd42z24z64v6dc27d4b2d2df589974f9d8d47xz7wvb54d4vc",
		bareHash: "vc4b8xvvbzz77z6cf4fx2z6xd7b244b494852cz5bd5bwd5v95cxv8x4bc7vbw62",
	},
	"a native sidecar brings all init containers in, absent containers are null": {
		spec: `
initContainers:
- name: plain-init
  image: busybox
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  imagePullPolicy: Always
  podInjectPolicy: AfterAppContainer
  upgradeStrategy: {upgradeType: ColdUpgrade}
  shareVolumePolicy: {type: disabled}
- name: native
  image: busybox:1.36
  restartPolicy: Always
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  imagePullPolicy: IfNotPresent
  podInjectPolicy: AfterAppContainer
  upgradeStrategy: {upgradeType: ColdUpgrade}
  shareVolumePolicy: {type: disabled}
  resourcesPolicy: {targetContainersMode: sum, targetContainersNameRegex: ".*", resourcesExpr: {limits: {cpu: "max(cpu*50%, 50m)"}}}
`,
		text:     `{"containers":null,"initContainers":[{"name":"plain-init","image":"busybox","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"Always","podInjectPolicy":"AfterAppContainer","upgradeStrategy":{"upgradeType":"ColdUpgrade"},"shareVolumePolicy":{"type":"disabled"}},{"name":"native","image":"busybox:1.36","resources":{},"restartPolicy":"Always","terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","podInjectPolicy":"AfterAppContainer","upgradeStrategy":{"upgradeType":"ColdUpgrade"},"shareVolumePolicy":{"type":"disabled"},"resourcesPolicy":{"targetContainersMode":"sum","targetContainersNameRegex":".*","resourcesExpr":{"limits":{"cpu":"max(cpu*50%, 50m)"}}}}]}`,
		hash:     "5x62v484b27bvxcczc942ffd7d2zwvz848f888wc47ffx8642669564d968444v9",
		bareHash: "6bw45vz49fwxvx8786dz7v955d827x9ffw6222bd5cx8bxc5fcwf5f6bw28x88bx",
	},
	"nothing": {
		spec: `{}`,
		text: `{"containers":null}`,
		hash: "x5vwx9w6vv4dv72c9w4c2f6v74fbwx545b45bbfz6z2dvf8w887xw86fvcb4cf48",
	},
	"plain init containers only": {
		spec: `initContainers: [{name: a, image: b}]`,
		text: `{"containers":null}`,
		hash: "x5vwx9w6vv4dv72c9w4c2f6v74fbwx545b45bbfz6z2dvf8w887xw86fvcb4cf48",
	},
	"an empty list is not an absent one": {
		spec: `containers: []`,
		text: `{"containers":[]}`,
		hash: "5662x672v59974vdzvf4bdfwc4v526wx5w7884vx5c7fc2f246v484v5988xb9z7",
	},
	"members that are always written": {
		spec:     `containers: [{name: container1, image: test-image}]`,
		text:     `{"containers":[{"name":"container1","image":"test-image","resources":{},"upgradeStrategy":{},"shareVolumePolicy":{}}]}`,
		hash:     "w26c4x8fz245642fdv499b464248f974xddx4x55z5dw55bc6x66464fxz77dc78",
		bareHash: "8wzddb4dvv9c6x8zdc77z4z75987424f457dfv6724ddw6zbdx467wz5x24fc759",
	},
	"a plain init container beside the last one changes nothing": {
		spec:     `{containers: [{name: container1, image: test-image}], initContainers: [{name: i, image: j}]}`,
		hash:     "w26c4x8fz245642fdv499b464248f974xddx4x55z5dw55bc6x66464fxz77dc78",
		bareHash: "8wzddb4dvv9c6x8zdc77z4z75987424f457dfv6724ddw6zbdx467wz5x24fc759",
	},
	"a container and a native sidecar": {
		spec: `{containers: [{name: container1, image: test-image}], initContainers: [{name: container1, image: test-image, restartPolicy: Always}]}`,
		text: `{"containers":[{"name":"container1","image":"test-image","resources":{},"upgradeStrategy":{},"shareVolumePolicy":{}}],"initContainers":[{"name":"container1","image":"test-image","resources":{},"restartPolicy":"Always","upgradeStrategy":{},"shareVolumePolicy":{}}]}`,
		hash: "4xwx4d4844vd4v9x79wb4xbxf4xb29475cc4446v8cz2c2f2f5c5bw448vd42z8w",
	},
}

func TestHashesAreThoseOfTheReference(t *testing.T) {
	for name, v := range referenceVectors {
		t.Run(name, func(t *testing.T) {
			spec := parse(t, v.spec)
			withImage, withoutImage, err := Hashes(spec)
			if err != nil {
				t.Fatalf("Hashes: %v", err)
			}
			if diff := cmp.Diff(parse(t, v.spec), spec); diff != "" {
				t.Errorf("the spec was changed:\n%s", diff)
			}
			expect(t, "hash", v.hash, withImage)
			expect(t, "hash without image", v.bareHash, withoutImage)

			text, _ := preimage(spec)
			expect(t, "preimage", v.text, string(text))
		})
	}
}

// expect compares only the results that a vector has.
func expect(t *testing.T, what, want, got string) {
	t.Helper()
	if want != "" && want != got {
		t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

func TestUnknownMembersFollowOnALineOfTheirOwn(t *testing.T) {
	const plain = `{"containers":[{"name":"a","image":"b","resources":{},"upgradeStrategy":{},"shareVolumePolicy":{}}]}`
	tests := map[string]struct{ spec, want, hash, bareHash string }{
		"none": {`containers: [{name: a, image: b}]`, plain, "", ""},
		"a null one is absent": {
			`containers: [{name: a, image: b, novel: null}]`, plain, "", ""},
		"at the top of a container": {
			`containers: [{name: a, image: b, novel: {z: 1, a: [x, null, 1.5]}}]`,
			plain + "\n" + `{"containers":{"a":{"novel":{"a":["x",null,1.5],"z":1}}}}`,
			"42fvffzd9ff64689bw2f8f444z6c64bdbcc77642v5z7c29wd7x4z4z5w82c4bz4", "59x9xcbwddd5d7c8xb2v2c9zf6xv68948dv448b4cwf957242z88d4472z42447c",
		},
		"numbers, as encoding/json writes them": {
			`containers: [{name: a, image: b, novel: [1.5e-9, 1.5e-10, 1.5e30]}]`,
			plain + "\n" + `{"containers":{"a":{"novel":[1.5e-9,1.5e-10,1.5e+30]}}}`, "", "",
		},
		"in a list, under the index": {
			`containers: [{name: a, image: b, env: [{name: x}, {name: "y", novel: true}]}]`,
			`{"containers":[{"name":"a","image":"b","env":[{"name":"x"},{"name":"y"}],"resources":{},"upgradeStrategy":{},"shareVolumePolicy":{}}]}` +
				"\n" + `{"containers":{"a":{"env":{"1":{"novel":true}}}}}`, "", "",
		},
		"in an object that is otherwise empty": {
			`containers: [{name: a, image: b, securityContext: {novel: "<"}}]`,
			`{"containers":[{"name":"a","image":"b","resources":{},"securityContext":{},"upgradeStrategy":{},"shareVolumePolicy":{}}]}` +
				"\n" + `{"containers":{"a":{"securityContext":{"novel":"\u003c"}}}}`, "", "",
		},
		"of two containers of one name": {
			`containers: [{name: a, image: b, novel: 1}, {name: a, image: b, novel: 2}]`,
			strings.TrimSuffix(plain, "]}") + `,` + strings.TrimPrefix(plain, `{"containers":[`) +
				"\n" + `{"containers":{"a":{"novel":1},"a#1":{"novel":2}}}`, "", "",
		},
		"of plain init containers are left out with them": {
			`{containers: [{name: a, image: b}], initContainers: [{name: i, novel: 1}]}`, plain, "", ""},
		"of init containers, when one is a native sidecar": {
			`initContainers: [{name: i, novel: 1}, {name: s, restartPolicy: Always}]`,
			`{"containers":null,"initContainers":[{"name":"i","resources":{},"upgradeStrategy":{},"shareVolumePolicy":{}},{"name":"s","resources":{},"restartPolicy":"Always","upgradeStrategy":{},"shareVolumePolicy":{}}]}` +
				"\n" + `{"initContainers":{"i":{"novel":1}}}`, "", "",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spec := parse(t, tc.spec)
			got, err := preimage(spec)
			if err != nil {
				t.Fatalf("preimage: %v", err)
			}
			expect(t, "preimage", tc.want, string(got))
			hash, bareHash, err := Hashes(spec)
			if err != nil {
				t.Fatalf("Hashes: %v", err)
			}
			expect(t, "hash", tc.hash, hash)
			expect(t, "hash without image", tc.bareHash, bareHash)
		})
	}
}

func TestHashesRefuseWrongTypes(t *testing.T) {
	tests := map[string]struct{ spec, want string }{
		"a number for a string":       {`containers: [{name: a, image: 5}]`, "spec.containers[0].image: must be a string, not the number 5"},
		"a string for a number":       {`containers: [{name: a, ports: [{}, {containerPort: x}]}]`, "spec.containers[0].ports[1].containerPort: must be a whole number, not a string"},
		"a fraction for a number":     {`containers: [{name: a, ports: [{containerPort: 1.5}]}]`, "spec.containers[0].ports[0].containerPort: must be a whole number, not the number 1.5"},
		"a number out of range":       {`containers: [{name: a, ports: [{containerPort: 3000000000}]}]`, "spec.containers[0].ports[0].containerPort: must be a whole number from -2147483648 to 2147483647, not 3000000000"},
		"a string for a truth value":  {`containers: [{name: a, tty: "yes"}]`, "spec.containers[0].tty: must be true or false, not a string"},
		"a list for an object":        {`containers: [{name: a, livenessProbe: []}]`, "spec.containers[0].livenessProbe: must be an object, not a list"},
		"an object for a list":        {`containers: {name: a}`, "spec.containers: must be a list, not an object"},
		"a list for a map":            {`containers: [{resources: {limits: []}}]`, "spec.containers[0].resources.limits: must be an object, not a list"},
		"a word for a quantity":       {`containers: [{resources: {limits: {cpu: lots}}}]`, `spec.containers[0].resources.limits["cpu"]: must be a quantity such as 100m or 64Mi, not "lots"`},
		"a quantity of hours":         {`containers: [{resources: {limits: {cpu: "1e-900000000"}}}]`, `spec.containers[0].resources.limits["cpu"]: must be a quantity of at most 32 characters, not a string`},
		"a truth value for a port":    {`containers: [{livenessProbe: {httpGet: {port: true}}}]`, "spec.containers[0].livenessProbe.httpGet.port: must be a whole number, not true"},
		"a string for a container":    {`containers: [sidecar]`, "spec.containers[0]: must be an object, not a string"},
		"in a native sidecar as well": {`initContainers: [{image: [], restartPolicy: Always}]`, "spec.initContainers[0].image: must be a string, not a list"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := Hashes(parse(t, tc.spec))
			var typeError *TypeError
			if !errors.As(err, &typeError) || err.Error() != tc.want {
				t.Errorf("Hashes: got error %v, want %s", err, tc.want)
			}
		})
	}
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, asJSON)
}
