package sidecarsets_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

const betaManifest = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: log}
spec:
  selector: {matchLabels: {app: web}}
  updateStrategy: {type: NotUpdate}
  containers: [{name: agent, image: "busybox:1.36"}]
`

// The first worked example of OpenKruise.
const (
	agentHash             = "vcv9449744252484czf45xb572z8zbcwvc7c5b5cx85c44f2wf2964d88c5zd944"
	agentHashWithoutImage = "62258bb8d4vv7w584244bd5df277d4vw9fbf49c99967447fxw5z4f4956b97fz4"
	agentHashes           = `{"kruise.io/sidecarset-hash":"` + agentHash + `","kruise.io/sidecarset-hash-without-image":"` + agentHashWithoutImage + `"}`
)

var agentDefaults = []string{
	`add /spec/containers/0/podInjectPolicy "BeforeAppContainer"`,
	`add /spec/containers/0/upgradeStrategy {"upgradeType":"ColdUpgrade"}`,
	`add /spec/containers/0/shareVolumePolicy {"type":"disabled"}`,
	`add /spec/containers/0/imagePullPolicy "IfNotPresent"`,
	`add /spec/containers/0/terminationMessagePath "/dev/termination-log"`,
	`add /spec/containers/0/terminationMessagePolicy "File"`,
	`add /spec/updateStrategy/partition 0`,
	`add /spec/updateStrategy/maxUnavailable 1`,
	`add /spec/revisionHistoryLimit 10`,
}

func TestSidecarSetDefaulterPatchesWhatItFillsIn(t *testing.T) {
	const hashPath, bareHashPath = "/metadata/annotations/kruise.io~1sidecarset-hash", "/metadata/annotations/kruise.io~1sidecarset-hash-without-image"
	stored := strings.NewReplacer(
		"{name: log}", `{name: log, annotations: {kruise.io/sidecarset-hash: `+agentHash+`, kruise.io/sidecarset-hash-without-image: `+agentHashWithoutImage+`}}`,
		"{type: NotUpdate}", "{type: NotUpdate, partition: 0, maxUnavailable: 1}\n  revisionHistoryLimit: 10",
		`"busybox:1.36"`, `"busybox:1.36", podInjectPolicy: BeforeAppContainer, upgradeStrategy: {upgradeType: ColdUpgrade}, shareVolumePolicy: {type: disabled}, imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File`,
	).Replace(betaManifest)
	// startup has the two defaults of a startup probe that OpenKruise fills in, and no others.
	startup := strings.NewReplacer(
		agentHash, "z4xf874bw6zdz852f6c48d6vww54dw7v5c6wz7z78zxw949f7295v4f8dw624f42",
		agentHashWithoutImage, "8785z7zfvc965bc9z9f5z7d29z6f4cdwczz4bc6w2fbczvcx4zb444bv2fx8cbxx",
		`"busybox:1.36"`, `"busybox:1.36", startupProbe: {httpGet: {path: /up, port: 8080, scheme: HTTP}, successThreshold: 1}`,
	).Replace(stored)
	tests := map[string]struct {
		manifest string
		want     []string
	}{
		"v1beta1":                    {betaManifest, append(agentDefaults[:9:9], `add /metadata/annotations `+agentHashes)},
		"v1alpha1, with the same":    {strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1) + "  namespace: team-a\n", append(agentDefaults[:9:9], `add /metadata/annotations `+agentHashes)},
		"beside other annotations":   {strings.Replace(betaManifest, "{name: log}", "{name: log, annotations: {a: b}}", 1), append(agentDefaults[:9:9], `add `+hashPath+` "`+agentHash+`"`, `add `+bareHashPath+` "`+agentHashWithoutImage+`"`)},
		"nothing, the second time":   {stored, nil},
		"nothing of a startup probe": {startup, nil},
		"only the hash that differs": {strings.Replace(stored, agentHash, "stale", 1), []string{`replace ` + hashPath + ` "` + agentHash + `"`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, sidecarsets.NewDefaulter(), sidecarSetReview(t, tc.manifest, ""))
			if !answer.Allowed {
				t.Fatalf("refused: %v", answer.Result)
			}
			if diff := cmp.Diff(tc.want, operations(t, answer.Patch)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

// writtenBy is the metadata of a SidecarSet with the members of spec that clients have written.
// The members that a client of v1beta1 has written do not count.
func writtenBy(members string) string {
	return "metadata: {name: log, managedFields: [{apiVersion: apps.kruise.io/v1alpha1, fieldsV1: {f:spec: {" + members + "}}}, " +
		"{apiVersion: apps.kruise.io/v1beta1, fieldsV1: {f:spec: {f:namespace: {}, f:namespaceSelector: {}}}}]}\n"
}

// Of the members that select namespaces, a v1alpha1 SidecarSet keeps those that an API server
// reads back. A client that sends the same ones again then changes nothing.
func TestSidecarSetDefaulterKeepsWhatIsReadBack(t *testing.T) {
	const remove, ignored = "remove /spec/", `spec.namespaceSelector: is ignored beside spec.namespace; remove one of them`
	tests := map[string]struct {
		members       string
		want, warning []string
	}{
		"a namespace":                     {members: "  namespace: a\n"},
		"a namespaceSelector":             {members: "  namespaceSelector: {matchLabels: {team: a}}\n"},
		"a namespaceSelector with a name": {members: "  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: a}}\n"},
		"both":                            {"  namespace: a\n  namespaceSelector: {matchLabels: {team: a}}\n", []string{remove + "namespaceSelector "}, []string{ignored}},
		"both, the namespace of which a merge has left": {"  namespace: a\n  namespaceSelector: {matchLabels: {team: a}}\n" + writtenBy("f:namespaceSelector: {}"), []string{remove + "namespace "}, nil},
		"both, the selector of which a merge has left":  {"  namespace: a\n  namespaceSelector: {matchLabels: {team: a}}\n" + writtenBy("f:namespace: {}"), []string{remove + "namespaceSelector "}, nil},
		"both, by one user":                             {"  namespace: a\n  namespaceSelector: {matchLabels: {team: a}}\n" + writtenBy("f:namespace: {}, f:namespaceSelector: {}"), []string{remove + "namespaceSelector "}, []string{ignored}},
		"both, with different names":                    {"  namespace: a\n  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}\n", []string{remove + "namespaceSelector "}, []string{ignored}},
		"both, with the same name":                      {members: "  namespace: a\n  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: a}}\n", want: []string{remove + "namespace "}},
		"a namespace and no namespaceSelector":          {members: "  namespace: a\n  namespaceSelector: null\n", want: []string{remove + "namespaceSelector "}},
		"a namespaceSelector and no namespace":          {members: "  namespace: \"\"\n  namespaceSelector: {matchLabels: {team: a}}\n", want: []string{remove + "namespace "}},
		"a member that only v1beta1 has":                {members: "  customVersion: v1\n", want: []string{remove + "customVersion "}},
		"a member that no version has":                  {members: "  novel: 1\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			manifest := strings.NewReplacer("v1beta1", "v1alpha1", "metadata: {name: log}\n", "").Replace(betaManifest) + tc.members
			if !strings.Contains(manifest, "metadata:") {
				manifest += "metadata: {name: log}\n"
			}
			answer := fixtures.Review(t, sidecarsets.NewDefaulter(), sidecarSetReview(t, manifest, ""))
			got := slices.DeleteFunc(operations(t, answer.Patch), func(op string) bool { return strings.HasPrefix(op, "add ") })
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.warning, answer.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			fixtures.Patched(t, manifestObject(t, manifest), answer.Patch)
		})
	}
}

func TestSidecarSetWebhooksRefuseWhatTheyCannotRead(t *testing.T) {
	tests := map[string]struct{ manifest, want string }{
		"another version":          {strings.Replace(betaManifest, "v1beta1", "v1", 1), "unsupported version: v1; use v1beta1 or v1alpha1 of apps.kruise.io"},
		"another group":            {strings.Replace(betaManifest, "apps.kruise.io", "example.com", 1), "unsupported version: example.com/v1beta1; use v1beta1 or v1alpha1 of apps.kruise.io"},
		"another kind":             {strings.Replace(betaManifest, "SidecarSet", "Pod", 1), "unexpected kind: Pod, want SidecarSet"},
		"no object":                {``, "the request holds no object"},
		"a quantity":               {strings.Replace(betaManifest, "[{name: agent", "[{name: a}, {resources: {limits: {cpu: lots}}, name: agent", 1), `SidecarSet "log": spec.containers[1].resources.limits.cpu: quantities must match the regular expression`},
		"v1alpha1 is read as well": {strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1) + "  namespace: 5\n", "spec.namespace"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := sidecarSetReview(t, tc.manifest, "")
			for webhook, handler := range map[string]http.Handler{"defaulter": sidecarsets.NewDefaulter(), "validator": validator(&live{})} {
				answer := fixtures.Review(t, handler, body)
				if answer.Allowed || answer.Result.Code != http.StatusBadRequest || !strings.Contains(answer.Result.Message, tc.want) {
					t.Errorf("%s: got %v, want 400 %s", webhook, answer.Result, tc.want)
				}
			}
		})
	}
}

func TestSidecarSetWebhooksIgnoreOtherRequests(t *testing.T) {
	broken := strings.Replace(betaManifest, `"busybox:1.36"`, "5", 1)
	for member, value := range map[string]any{"operation": admissionv1.Delete, "subResource": "status"} {
		for _, handler := range []http.Handler{sidecarsets.NewDefaulter(), validator(&live{})} {
			envelope := manifestObject(t, string(sidecarSetReview(t, broken, betaManifest)))
			envelope["request"].(map[string]any)[member] = value
			if answer := fixtures.Review(t, handler, fixtures.Encode(t, envelope)); !answer.Allowed || answer.Patch != nil {
				t.Errorf("%s %v: got %+v", member, value, answer)
			}
		}
	}
}

// The last finalizer of an object can be removed even if the object is broken.
func TestSidecarSetWebhooksLetFinalizersGo(t *testing.T) {
	old := strings.Replace(betaManifest, `"busybox:1.36"`, "5", 1)
	deleted := strings.Replace(old, "{name: log}", `{name: log, deletionTimestamp: "2026-11-20T00:00:00Z"}`, 1)
	changed := strings.Replace(deleted, "5", "6", 1)
	for _, handler := range []http.Handler{sidecarsets.NewDefaulter(), validator(&live{})} {
		if answer := fixtures.Review(t, handler, sidecarSetReview(t, deleted, old)); !answer.Allowed || answer.Patch != nil {
			t.Errorf("refused: %v", answer.Result)
		}
		if answer := fixtures.Review(t, handler, sidecarSetReview(t, changed, old)); answer.Allowed {
			t.Errorf("a change was let through")
		}
	}
}

// A SidecarSet that is being deleted is still injected. So an update of its labels or
// annotations is checked as usual.
func TestSidecarSetWebhooksLookAtMetadataOfWhatIsBeingDeleted(t *testing.T) {
	const named = "{name: log, annotations: {apps.kruise.io/sidecarset-base: base, PLACE}, labels: {a: b}, finalizers: [a/b], deletionTimestamp: \"2026-11-20T00:00:00Z\"}"
	with := func(annotation string) string {
		return strings.Replace(betaManifest, "{name: log}", strings.Replace(named, "PLACE", annotation, 1), 1)
	}
	stored := defaulted(t, with("c: d"))
	tests := map[string]struct {
		manifest string
		seen     bool
	}{
		"a finalizer":              {strings.Replace(stored, `"a/b"`, "", 1), false},
		"what kubectl keeps there": {strings.Replace(stored, `"c":"d"`, `"c":"d","kubectl.kubernetes.io/last-applied-configuration":"x"`, 1), false},
		"it becomes a canary":      {strings.Replace(stored, `"c":"d"`, `"c":"d","apps.kruise.io/sidecarset-canary":"true"`, 1), true},
		"a label":                  {strings.Replace(stored, `"a":"b"`, `"a":"c"`, 1), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, validator(&live{err: errors.New("no answer")}), sidecarSetReview(t, tc.manifest, stored))
			if answer.Allowed == tc.seen {
				t.Errorf("allowed is %v: %v", answer.Allowed, answer.Result)
			}
		})
	}
}

// sidecarSetReview is an AdmissionReview as the API server sends it: of a creation, or of an
// update if old is not empty.
func sidecarSetReview(t *testing.T, manifest, old string) []byte {
	t.Helper()
	request := map[string]any{
		"uid": "uid-1", "operation": "CREATE", "dryRun": false,
		"kind":     map[string]any{"group": "apps.kruise.io", "version": "v1beta1", "kind": "SidecarSet"},
		"resource": map[string]any{"group": "apps.kruise.io", "version": "v1beta1", "resource": "sidecarsets"},
		"userInfo": map[string]any{"username": "kubernetes-admin"},
	}
	if manifest != "" {
		request["object"] = submitted(t, manifest)
	}
	if old != "" {
		request["operation"] = "UPDATE"
		request["oldObject"] = submitted(t, old)
	}
	return fixtures.Encode(t, map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

// submitted returns JSON unchanged, and converts YAML.
func submitted(t *testing.T, manifest string) any {
	t.Helper()
	if json.Valid([]byte(manifest)) {
		return json.RawMessage(manifest)
	}
	return manifestObject(t, manifest)
}

func manifestObject(t *testing.T, manifest string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
		t.Fatalf("%v in %s", err, manifest)
	}
	return object
}

func operations(t *testing.T, patch []byte) []string {
	t.Helper()
	if patch == nil {
		return nil
	}
	var ops []struct {
		Op, Path string
		Value    json.RawMessage
	}
	if err := json.Unmarshal(patch, &ops); err != nil {
		t.Fatalf("%v in %s", err, patch)
	}
	var lines []string
	for _, op := range ops {
		lines = append(lines, op.Op+" "+op.Path+" "+string(op.Value))
	}
	return lines
}

// Both webhooks answer for any object. The defaulter finds nothing to fill in, in an object
// that it has accepted and filled in before.
func FuzzSidecarSetWebhooksAnswer(f *testing.F) {
	f.Add([]byte(`{"spec":{"selector":{},"containers":[{"name":"a","transferEnv":[{"sourceContainerNameFrom":{}}]},null]}}`), true)
	f.Add([]byte(`{"metadata":{"annotations":null,"deletionTimestamp":""},"spec":{"volumes":[{}],"updateStrategy":{"partition":"x"}}}`), false)
	f.Add([]byte(`{"metadata":{"labels":{"apps.kruise.io/sidecarset-custom-version":""}},"spec":{"namespace":"a","patchPodMetadata":[{}]}}`), true)
	f.Fuzz(func(t *testing.T, members []byte, alpha bool) {
		var object map[string]any
		if json.Unmarshal(members, &object) != nil || object == nil {
			return // not an object
		}
		object["kind"], object["apiVersion"] = "SidecarSet", "apps.kruise.io/v1beta1"
		if alpha {
			object["apiVersion"] = "apps.kruise.io/v1alpha1"
		}
		body := sidecarSetReview(t, string(fixtures.Encode(t, object)), "")
		fixtures.Review(t, validator(&live{}), body)
		answer := fixtures.Review(t, sidecarsets.NewDefaulter(), body)
		if !answer.Allowed || answer.Patch == nil {
			return
		}
		patched := string(fixtures.Encode(t, fixtures.Patched(t, object, answer.Patch)))
		again := fixtures.Review(t, sidecarsets.NewDefaulter(), sidecarSetReview(t, patched, patched))
		if !again.Allowed || again.Patch != nil {
			t.Errorf("second pass: %s, %v", again.Patch, again.Result)
		}
	})
}
