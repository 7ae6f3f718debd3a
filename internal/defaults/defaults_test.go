package defaults_test

import (
	"encoding/json"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/defaults"
)

// complete is a spec in which nothing is left to default. Its updateStrategy is not closed,
// so that a case can add to it.
const complete = `revisionHistoryLimit: 10, updateStrategy: {type: RollingUpdate, partition: 0, maxUnavailable: 1`

const completeContainer = `podInjectPolicy: AfterAppContainer, image: "a:1", imagePullPolicy: IfNotPresent, ` +
	`terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, ` +
	`upgradeStrategy: {upgradeType: ColdUpgrade}, shareVolumePolicy: {type: disabled}`

func TestApplyToSpec(t *testing.T) {
	const strategy = `add /spec/updateStrategy {"maxUnavailable":1,"partition":0,"type":"RollingUpdate"}`
	tests := map[string]struct {
		object string
		want   []string
	}{
		"an absent spec is added whole": {`{}`, []string{
			`add /spec {"revisionHistoryLimit":10,"updateStrategy":{"maxUnavailable":1,"partition":0,"type":"RollingUpdate"}}`}},
		"an empty spec": {`spec: {}`, []string{strategy, `add /spec/revisionHistoryLimit 10`}},
		"null means absent": {`spec: {updateStrategy: null, revisionHistoryLimit: null}`, []string{
			`replace /spec/updateStrategy {"maxUnavailable":1,"partition":0,"type":"RollingUpdate"}`,
			`replace /spec/revisionHistoryLimit 10`}},
		"only absent members of updateStrategy": {`spec: {revisionHistoryLimit: 3, updateStrategy: {partition: "10%"}}`, []string{
			`add /spec/updateStrategy/type "RollingUpdate"`,
			`add /spec/updateStrategy/maxUnavailable 1`}},
		"zeros that mean something stay":     {`spec: {revisionHistoryLimit: 0, updateStrategy: {type: NotUpdate, partition: 0, maxUnavailable: 0}}`, nil},
		"an empty type of updateStrategy":    {`spec: {` + complete + `, type: ""}}`, []string{`replace /spec/updateStrategy/type "RollingUpdate"`}},
		"injectionStrategy.revision.policy":  {`spec: {` + complete + `}, injectionStrategy: {revision: {customVersion: v1}}}`, []string{`add /spec/injectionStrategy/revision/policy "Always"`}},
		"no injectionStrategy is invented":   {`spec: {` + complete + `}, injectionStrategy: {paused: true}}`, nil},
		"patchPodMetadata[].patchPolicy":     {`spec: {` + complete + `}, patchPodMetadata: [{patchPolicy: Overwrite}, {}, {patchPolicy: ""}]}`, []string{`add /spec/patchPodMetadata/1/patchPolicy "Retain"`, `replace /spec/patchPodMetadata/2/patchPolicy "Retain"`}},
		"a status without required counters": {`{spec: {` + complete + `}}, status: {readyPods: 3}}`, []string{`add /status/matchedPods 0`, `add /status/updatedPods 0`}},
		"unknown members":                    {`{spec: {` + complete + `, novel: {type: ""}}, novel: [{}]}, novel: {}, status: null}`, nil},
		"v1alpha1 is the same":               {`{apiVersion: apps.kruise.io/v1alpha1, spec: {namespace: a}}`, []string{strategy, `add /spec/revisionHistoryLimit 10`}},
		"a scatter term without value":       {`spec: {` + complete + `, scatterStrategy: [{key: a}, {value: b}]}}`, []string{`add /spec/updateStrategy/scatterStrategy/0/value ""`, `add /spec/updateStrategy/scatterStrategy/1/key ""`}},
		"an order term without key":          {`spec: {` + complete + `, priorityStrategy: {orderPriority: [{}]}}}`, []string{`add /spec/updateStrategy/priorityStrategy/orderPriority/0/orderedKey ""`}},
		"a weight term without anything": {`spec: {` + complete + `, priorityStrategy: {weightPriority: [{}]}}}`, []string{
			`add /spec/updateStrategy/priorityStrategy/weightPriority/0/weight 0`,
			`add /spec/updateStrategy/priorityStrategy/weightPriority/0/matchSelector {}`}},
		"selectors without key or operator": {
			`spec: {` + complete + `, selector: {matchExpressions: [{key: a}]}, priorityStrategy: {weightPriority: [{weight: 1, matchSelector: {matchExpressions: [{operator: In}]}}]}},` +
				` selector: {matchExpressions: [{}]}, namespaceSelector: {matchExpressions: [{operator: In}]}}`, []string{
				`add /spec/selector/matchExpressions/0/key ""`,
				`add /spec/selector/matchExpressions/0/operator ""`,
				`add /spec/namespaceSelector/matchExpressions/0/key ""`,
				`add /spec/updateStrategy/selector/matchExpressions/0/operator ""`,
				`add /spec/updateStrategy/priorityStrategy/weightPriority/0/matchSelector/matchExpressions/0/key ""`}},
		"wrong types are left to the decoder": {`spec: {updateStrategy: [], revisionHistoryLimit: x, injectionStrategy: 1, patchPodMetadata: {}, containers: a, volumes: [1]}`, nil},
		"a spec of the wrong type":            {`spec: 5`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { check(t, tc.object, tc.want) })
	}
}

func TestApplyToContainer(t *testing.T) {
	const probe = `"failureThreshold":3,"periodSeconds":10,"successThreshold":1,"timeoutSeconds":1`
	ops := func(more ...string) []string { return more }
	tests := map[string]struct {
		container string
		want      []string // paths are relative to the container
	}{
		"everything": {`name: a`, []string{
			`add podInjectPolicy "AfterAppContainer"`,
			`add upgradeStrategy {"upgradeType":"ColdUpgrade"}`,
			`add shareVolumePolicy {"type":"disabled"}`,
			`add imagePullPolicy "IfNotPresent"`,
			`add terminationMessagePath "/dev/termination-log"`,
			`add terminationMessagePolicy "File"`}},
		"nothing": {completeContainer, nil},
		"empty strings and objects": {`podInjectPolicy: "", image: a, imagePullPolicy: "", terminationMessagePath: "", terminationMessagePolicy: "", upgradeStrategy: {}, shareVolumePolicy: {type: ""}`, []string{
			`replace podInjectPolicy "AfterAppContainer"`,
			`add upgradeStrategy/upgradeType "ColdUpgrade"`,
			`replace shareVolumePolicy/type "disabled"`,
			`replace imagePullPolicy "Always"`,
			`replace terminationMessagePath "/dev/termination-log"`,
			`replace terminationMessagePolicy "File"`}},
		"no shareVolumeDevicePolicy is invented, nor its type": {completeContainer + `, shareVolumeDevicePolicy: {}`, nil},
		"ports[].protocol":                    {completeContainer + `, ports: [{containerPort: 1, protocol: UDP}, {containerPort: 2}]`, ops(`add ports/1/protocol "TCP"`)},
		"env[].valueFrom.fieldRef.apiVersion": {completeContainer + `, env: [{name: a}, {name: b, valueFrom: {fieldRef: {fieldPath: x}}}, {name: c, valueFrom: {secretKeyRef: {}}}]`, ops(`add env/1/valueFrom/fieldRef/apiVersion "v1"`)},
		"transferEnv's fieldRef":              {completeContainer + `, transferEnv: [{sourceContainerNameFrom: {fieldRef: {fieldPath: x}}}]`, ops(`add transferEnv/0/sourceContainerNameFrom/fieldRef/apiVersion "v1"`)},
		"a required fieldPath":                {completeContainer + `, transferEnv: [{sourceContainerNameFrom: {fieldRef: {apiVersion: v1}}}]`, ops(`add transferEnv/0/sourceContainerNameFrom/fieldRef/fieldPath ""`)},
		"an empty sourceContainerNameFrom":    {completeContainer + `, transferEnv: [{sourceContainerNameFrom: {}}]`, nil},
		"quantities are rounded up to the milli, in order of names": {
			completeContainer + `, resources: {limits: {memory: 100500u, example.com/x: 1u, cpu: "1.0001"}, requests: {cpu: 0.0001}}`, []string{
				`replace resources/limits/cpu "1001m"`,
				`replace resources/limits/example.com~1x "1m"`,
				`replace resources/limits/memory "101m"`,
				`replace resources/requests/cpu "1m"`}},
		"exact quantities stay as written":              {completeContainer + `, resources: {limits: {cpu: 1000m, memory: 1024Mi, a: 1, b: 0.5}}`, nil},
		"what is not a quantity stays":                  {completeContainer + `, resources: {limits: {cpu: lots, memory: []}}`, nil},
		"livenessProbe":                                 {completeContainer + `, livenessProbe: {tcpSocket: {port: 1}, periodSeconds: 5}`, ops(`add livenessProbe/timeoutSeconds 1`, `add livenessProbe/successThreshold 1`, `add livenessProbe/failureThreshold 3`)},
		"zeros in a probe mean nothing":                 {completeContainer + `, readinessProbe: {timeoutSeconds: 0, periodSeconds: 0, successThreshold: 0, failureThreshold: 0}`, ops(`replace readinessProbe/timeoutSeconds 1`, `replace readinessProbe/periodSeconds 10`, `replace readinessProbe/successThreshold 1`, `replace readinessProbe/failureThreshold 3`)},
		"readinessProbe.httpGet":                        {completeContainer + `, readinessProbe: {httpGet: {port: 1}, ` + unquote(probe) + `}`, ops(`add readinessProbe/httpGet/path "/"`, `add readinessProbe/httpGet/scheme "HTTP"`)},
		"startupProbe: what validation demands":         {completeContainer + `, startupProbe: {httpGet: {port: 1}}`, ops(`add startupProbe/httpGet/path "/"`, `add startupProbe/httpGet/scheme "HTTP"`, `add startupProbe/successThreshold 1`)},
		"startupProbe: zeros stay as they are":          {completeContainer + `, startupProbe: {tcpSocket: {port: 1}, timeoutSeconds: 0, periodSeconds: 0, successThreshold: 0, failureThreshold: 0}`, ops(`replace startupProbe/successThreshold 1`)},
		"a startupProbe that OpenKruise stored":         {completeContainer + `, startupProbe: {httpGet: {port: 1, path: /, scheme: HTTP}, successThreshold: 1}`, nil},
		"no service of a gRPC probe":                    {completeContainer + `, livenessProbe: {grpc: {port: 1}, ` + unquote(probe) + `}`, nil},
		"lifecycle.httpGet":                             {completeContainer + `, lifecycle: {postStart: {httpGet: {path: /x}}, preStop: {httpGet: {scheme: HTTPS}}}`, ops(`add lifecycle/postStart/httpGet/scheme "HTTP"`, `add lifecycle/preStop/httpGet/path "/"`)},
		"an empty resourcesPolicy":                      {completeContainer + `, resourcesPolicy: {}`, ops(`add resourcesPolicy/targetContainersNameRegex ".*"`, `add resourcesPolicy/resourcesExpr {}`)},
		"an empty regex means all containers":           {completeContainer + `, resourcesPolicy: {targetContainersNameRegex: "", resourcesExpr: {}}`, ops(`replace resourcesPolicy/targetContainersNameRegex ".*"`)},
		"securityContext and envFrom are not defaulted": {completeContainer + `, securityContext: {}, envFrom: [{}], volumeMounts: [{}]`, nil},
		"wrong types are left to the decoder":           {completeContainer + `, ports: {}, env: [1, null, []], resources: [], livenessProbe: 1, lifecycle: a, transferEnv: [{sourceContainerNameFrom: 1}], resourcesPolicy: []`, nil},
		"unknown members":                               {completeContainer + `, novel: "", livenessProbe: {novel: {}, ` + unquote(probe) + `}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object := `spec: {` + complete + `}, initContainers: [{` + tc.container + `}]}`
			check(t, object, under("/spec/initContainers/0/", tc.want))
		})
	}
	t.Run("containers go before the app", func(t *testing.T) {
		object := `spec: {` + complete + `}, containers: [{` + completeContainer + `}, {` + strings.Replace(completeContainer, "AfterAppContainer", `""`, 1) + `}]}`
		check(t, object, []string{`replace /spec/containers/1/podInjectPolicy "BeforeAppContainer"`})
	})
	t.Run("null and scalars among containers are skipped", func(t *testing.T) {
		check(t, `spec: {`+complete+`}, containers: [null, 1], initContainers: null}`, nil)
	})
}

func TestApplyToVolume(t *testing.T) {
	tests := map[string]struct {
		volume string
		want   []string
	}{
		"no source":                             {`name: a`, []string{`add emptyDir {}`}},
		"a null source is none":                 {`name: a, emptyDir: null`, []string{`replace emptyDir {}`}},
		"a source that we do not know":          {`name: a, novel: {}`, nil},
		"hostPath.type":                         {`hostPath: {path: /}`, []string{`add hostPath/type ""`}},
		"hostPath.type that is empty":           {`hostPath: {type: ""}`, nil},
		"secret":                                {`secret: {}`, []string{`add secret/defaultMode 420`}},
		"a mode of zero":                        {`secret: {defaultMode: 0}`, nil},
		"configMap":                             {`configMap: {name: x}`, []string{`add configMap/defaultMode 420`}},
		"downwardAPI":                           {`downwardAPI: {items: [{path: p, fieldRef: {fieldPath: x}}, {resourceFieldRef: {}}]}`, []string{`add downwardAPI/defaultMode 420`, `add downwardAPI/items/0/fieldRef/apiVersion "v1"`}},
		"projected":                             {`projected: {sources: [{downwardAPI: {items: [{fieldRef: {}}]}}, {serviceAccountToken: {path: t}}, {secret: {}}]}`, []string{`add projected/defaultMode 420`, `add projected/sources/0/downwardAPI/items/0/fieldRef/apiVersion "v1"`, `add projected/sources/1/serviceAccountToken/expirationSeconds 3600`}},
		"ephemeral, image and iscsi are left":   {`ephemeral: {}, image: {reference: x}, iscsi: {}, rbd: {}, azureDisk: {}, scaleIO: {}`, nil},
		"wrong types are left to the decoder":   {`secret: [], projected: {defaultMode: x, sources: [1]}, downwardAPI: 5, hostPath: ""`, nil},
		"a podCertificate, newer than the rule": {`projected: {defaultMode: 1, sources: [{podCertificate: {}}]}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object := `spec: {` + complete + `}, volumes: [{` + tc.volume + `}]}`
			check(t, object, under("/spec/volumes/0/", tc.want))
		})
	}
}

func TestPullPolicyFollowsTheTag(t *testing.T) {
	sum := strings.Repeat("0123456789abcdef", 4)
	tests := map[string]string{
		"busybox":                            "Always",
		"busybox:latest":                     "Always",
		"busybox:1.36":                       "IfNotPresent",
		"registry:5000/busybox":              "Always",
		"registry.example.com/team/app":      "Always",
		"[::1]:5000/app":                     "Always",
		"app@sha256:" + sum:                  "IfNotPresent",
		"app:latest@sha256:" + sum:           "Always",
		"app:v1@sha256:" + sum:               "IfNotPresent",
		"Upper.Registry/app":                 "Always",
		"":                                   "IfNotPresent",
		"app@sha256:" + strings.ToUpper(sum): "IfNotPresent",
		sum:                                  "IfNotPresent",
		"a:" + strings.Repeat("x", 129):      "IfNotPresent",
		"$(IMAGE)":                           "IfNotPresent",
		"{{ .Values.image }}":                "IfNotPresent",
		"registry.example.com/app:latest\n":  "IfNotPresent",
		"registry.example.com/team__x/app--y/a.b_c": "Always",
	}
	for image, want := range tests {
		t.Run(image, func(t *testing.T) {
			container := map[string]any{"image": image}
			defaults.Apply(map[string]any{"spec": map[string]any{"containers": []any{container}}})
			if got := container["imagePullPolicy"]; got != want {
				t.Errorf("got %v, want %s", got, want)
			}
		})
	}
}

// Whatever the JSON: no panic; a second pass finds nothing to do; and the
// operations do to the original what Apply did to the object.
func FuzzApply(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"spec":null}`, `{"spec":{"containers":[null,{}],"volumes":[{"name":"a"},null],"updateStrategy":{"type":0}}}`,
		`{"spec":{"containers":[{"transferEnv":[{"sourceContainerNameFrom":{}}],"resources":{"limits":{"a~/b":"1n","c":1e-9}}}]}}`,
		`{"spec":{"initContainers":[{"resourcesPolicy":{},"lifecycle":{"preStop":{"httpGet":{}}},"startupProbe":{"httpGet":{}}}]},"status":{}}`,
		`{"spec":{"updateStrategy":{"priorityStrategy":{"weightPriority":[{}],"orderPriority":[{}]},"scatterStrategy":[{}]}}}`,
		`{"spec":{"volumes":[{"projected":{"sources":[{"serviceAccountToken":{}}]},"secret":{},"hostPath":{}}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var object map[string]any
		if kjson.UnmarshalCaseSensitivePreserveInts(data, &object) != nil || object == nil {
			return // not an object
		}
		original := marshal(t, object)
		patch := marshal(t, defaults.Apply(object))
		if again := defaults.Apply(object); len(again) != 0 {
			t.Errorf("second pass: %s", marshal(t, again))
		}
		if diff := cmp.Diff(decode(t, marshal(t, object)), decode(t, apply(t, original, patch))); diff != "" {
			t.Errorf("patch (-edited +patched):\n%s", diff)
		}
	})
}

// check states the operations, and that they and the edit in place agree.
func check(t *testing.T, text string, want []string) {
	t.Helper()
	original, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	object := decode(t, original)
	ops := defaults.Apply(object)
	var got []string
	for _, op := range ops {
		got = append(got, op.Operation+" "+op.Path+" "+string(marshal(t, op.Value)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	patched := apply(t, original, marshal(t, ops))
	if diff := cmp.Diff(decode(t, marshal(t, object)), decode(t, patched)); diff != "" {
		t.Errorf("patch (-edited +patched):\n%s", diff)
	}
}

func apply(t *testing.T, original, operations []byte) []byte {
	t.Helper()
	if string(operations) == "null" {
		return original
	}
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := patch.Apply(original)
	if err != nil {
		t.Fatalf("applying %s to %s: %v", operations, original, err)
	}
	return patched
}

// under completes relative paths.
func under(prefix string, operations []string) []string {
	var completed []string
	for _, op := range operations {
		completed = append(completed, strings.Replace(op, " ", " "+prefix, 1))
	}
	return completed
}

// unquote turns the inside of a JSON object into that of a YAML flow mapping.
func unquote(members string) string {
	return strings.ReplaceAll(strings.ReplaceAll(members, `"`, ""), ":", ": ")
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &object); err != nil {
		t.Fatal(err)
	}
	return object
}
