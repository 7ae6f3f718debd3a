package podsecurity_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podsecurity"
)

const (
	restricted = `enforce: restricted`
	baseline   = `enforce: baseline`
	// whole is all that restricted asks of a container.
	whole = `securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}`
)

// of makes a SidecarSet from the members of its spec.
func of(t testing.TB, spec string) *inject.Compiled {
	t.Helper()
	members := map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}}
	object := map[string]any{"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": map[string]any{"name": "log"}, "spec": members}
	var more map[string]any
	if err := yaml.Unmarshal([]byte(spec), &more); err != nil {
		t.Fatal(err)
	}
	maps.Copy(members, more)
	return fixtures.Compiled(t, fixtures.Stored(object))
}

// having makes a snapshot with Namespaces. Labels of Pod Security have no prefix.
func having(t testing.TB, namespaces map[string]string) *match.Snapshot {
	t.Helper()
	sets := map[string]labels.Set{}
	for name, text := range namespaces {
		var short map[string]string
		if err := yaml.Unmarshal([]byte("{"+text+"}"), &short); err != nil {
			t.Fatal(err)
		}
		sets[name] = labels.Set{"kubernetes.io/metadata.name": name}
		for key, value := range short {
			if slices.Contains([]string{"enforce", "enforce-version", "warn"}, key) {
				key = "pod-security.kubernetes.io/" + key
			}
			sets[name][key] = value
		}
	}
	return match.Build(nil, sets)
}

func TestWhatPodSecurityRefusesOfSidecars(t *testing.T) {
	const plain = `containers: [{name: agent, image: a}]`
	const refuses, may = "Pod Security (restricted) refuses Pods with these sidecars in namespace a: ", "Pod Security (restricted) may refuse Pods with these sidecars in namespace a: "
	const escalation, drop = `container "agent" must set securityContext.allowPrivilegeEscalation=false`, `container "agent" must set securityContext.capabilities.drop=["ALL"]`
	const nonRoot, seccomp = `pod or container "agent" must set securityContext.runAsNonRoot=true`, `pod or container "agent" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"`
	const all = refuses + escalation + "; " + drop + "; " + nonRoot + "; " + seccomp
	tests := map[string]struct{ namespace, spec, want string }{
		"nothing set":                        {restricted, plain, all},
		"nothing set, baseline":              {baseline, plain, ""},
		"nothing set, privileged":            {`enforce: privileged`, plain, ""},
		"only a warning is asked for":        {`warn: restricted`, plain, ""},
		"a version without a level":          {`enforce-version: latest`, plain, ""},
		"what a container has to set":        {restricted, `containers: [{name: agent, image: a, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]`, may + nonRoot + "; " + seccomp},
		"all set":                            {restricted, `containers: [{name: agent, image: a, ` + whole + `}]`, ""},
		"a version without most rules":       {restricted + `, enforce-version: v1.7`, plain, may + nonRoot},
		"a version that is newer than ours":  {restricted + `, enforce-version: v1.999`, plain, all},
		"a hot upgrade":                      {restricted, `containers: [{name: agent, image: a, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: empty}}]`, all},
		"a body that depends on the Pod":     {restricted, `containers: [{name: agent, image: a, shareVolumePolicy: {type: enabled}, resourcesPolicy: {targetContainersMode: all, resourceExpr: {limits: {cpu: sum(cpu)}}}}]`, all},
		"an init container":                  {baseline, `initContainers: [{name: agent, image: a, restartPolicy: Always, securityContext: {privileged: true}}]`, `container "agent" must not set securityContext.privileged=true`},
		"a user namespace makes up for it":   {restricted, `containers: [{name: agent, image: a, securityContext: {runAsUser: 0, runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}}]`, may + `container "agent" must not set runAsUser=0 (unless the Pod sets hostUsers=false)`},
		"a port of the node":                 {baseline, `containers: [{name: agent, image: a, ports: [{containerPort: 80, hostPort: 81}]}]`, `Pod Security (baseline) refuses Pods with these sidecars in namespace a: hostPort (container "agent" uses hostPort 81)`},
		"a directory of the node":            {baseline, `{containers: [{name: agent, image: a, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, hostPath: {path: /}}]}`, `hostPath volumes (volume "v")`},
		"a directory that no sidecar mounts": {baseline, `{containers: [{name: agent, image: a}], volumes: [{name: v, hostPath: {path: /}}]}`, ""},
		"an annotation":                      {baseline, `{containers: [{name: agent, image: a}], patchPodMetadata: [{annotations: {container.apparmor.security.beta.kubernetes.io/agent: unconfined}}]}`, `must not set AppArmor profile type to "container.apparmor.security.beta.kubernetes.io/agent="unconfined""`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			compiled := of(t, tc.spec)
			told := podsecurity.Warnings(podsecurity.Read(having(t, map[string]string{"a": tc.namespace}), nil).Refusals(compiled, compiled))
			if text := strings.Join(told, "\n"); !strings.Contains(text, tc.want) || (tc.want == "") != (text == "") {
				t.Errorf("it says\n%s\nwant\n%s", text, tc.want)
			}
		})
	}
}

func TestWhereSidecarsAreRefused(t *testing.T) {
	const privileged = `containers: [{name: agent, image: a, ` + whole + `}, {name: root, image: a, securityContext: {privileged: true}}]`
	namespaces := map[string]string{
		"e": restricted, "d": restricted, "c": restricted + `, enforce-version: v1.30`, "b": restricted, "a": restricted,
		"p": baseline, "q": baseline + `, team: x`, "ours": baseline, "free": `enforce: privileged`, "none": `team: x`,
	}
	tests := map[string]struct {
		selector string
		want     []string // what the warnings say about places
	}{
		"by default":             {``, []string{"(restricted) refuses Pods with these sidecars in namespaces a, b, c and 2 more: ", "(baseline) refuses Pods with these sidecars in namespaces p, q: "}},
		"by name":                {`namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: d}}`, []string{"in namespace d: "}},
		"by label":               {`namespaceSelector: {matchLabels: {team: x}}`, []string{"in namespace q: "}},
		"where nothing enforces": {`namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: free}}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			compiled := of(t, privileged+"\n"+tc.selector)
			refusals := podsecurity.Read(having(t, namespaces), []string{"ours"}).Refusals(compiled, compiled)
			told, message := podsecurity.Warnings(refusals), podsecurity.Message(refusals)
			if len(told) != len(tc.want) {
				t.Fatalf("%d warnings, want %d: %s", len(told), len(tc.want), strings.Join(told, "\n"))
			}
			for i, want := range tc.want {
				if inMessage := strings.Replace(want, "and 2 more", "and others", 1); !strings.Contains(told[i], want) || !strings.Contains(message, inMessage) {
					t.Errorf("the warning says\n%s\nthe message\n%s\nwant %q", told[i], message, want)
				}
			}
		})
	}
}

// A recorded revision selects no Namespaces of its own.
func TestARecordedRevisionIsRefusedWhereItsSidecarSetSelects(t *testing.T) {
	compiled, recorded := of(t, `containers: [{name: agent, image: a, `+whole+`}]`), of(t, `containers: [{name: agent, image: a}]`)
	recorded.NamespaceSelector = labels.Nothing()
	if text := podsecurity.Message(podsecurity.Read(having(t, map[string]string{"a": restricted}), nil).Refusals(recorded, compiled)); !strings.Contains(text, "namespace a") {
		t.Errorf("it says %q", text)
	}
}

// Users who write SidecarSets and Namespaces choose their number, their names and the versions.
func TestTextsAreBounded(t *testing.T) {
	var containers, initContainers []string
	for i := range 500 {
		containers = append(containers, fmt.Sprintf("{name: c%d-%s, image: a, securityContext: {procMount: Unmasked}}", i, strings.Repeat("x", 40)))
		initContainers = append(initContainers, fmt.Sprintf("{name: i%d, image: a, ports: [{hostPort: %d, containerPort: 1}]}", i, i+1))
	}
	compiled := of(t, fmt.Sprintf("containers: [%s]\ninitContainers: [%s]", strings.Join(containers, ","), strings.Join(initContainers, ",")))
	namespaces := map[string]string{}
	for i := range 200 {
		namespaces[fmt.Sprintf("n%d-%s", i, strings.Repeat("x", 50))] = []string{restricted, baseline}[i%2] + fmt.Sprintf(", enforce-version: v1.%d", i)
	}
	refusals := podsecurity.Read(having(t, namespaces), nil).Refusals(compiled, compiled)
	if text := podsecurity.Message(refusals); text == "" || len(text) > 3000 {
		t.Errorf("a message of %d bytes", len(text))
	}
	if told := podsecurity.Warnings(refusals); len(told) > 3 || len(strings.Join(told, "")) > 3000 {
		t.Errorf("%d warnings of %d bytes", len(told), len(strings.Join(told, "")))
	}
}

func TestNamespacesAreTheSameOnlyWithTheSameLabels(t *testing.T) {
	read := func(namespaces map[string]string) *podsecurity.Namespaces {
		return podsecurity.Read(having(t, namespaces), nil)
	}
	before := map[string]string{"a": restricted + `, team: x`, "b": `team: x`}
	for name, tc := range map[string]struct {
		after map[string]string
		same  bool
	}{
		"as before":                       {before, true},
		"a label where nothing enforces":  {map[string]string{"a": restricted + `, team: x`, "b": `team: y`}, true},
		"a level":                         {map[string]string{"a": baseline + `, team: x`, "b": `team: x`}, false},
		"a label that a selector may ask": {map[string]string{"a": restricted + `, team: y`, "b": `team: x`}, false},
		"another that enforces":           {map[string]string{"a": restricted + `, team: x`, "b": restricted}, false},
	} {
		if got := read(before).Same(read(tc.after)); got != tc.same {
			t.Errorf("%s: %v", name, got)
		}
	}
}
