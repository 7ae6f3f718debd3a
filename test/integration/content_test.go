package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// contentOf is a SidecarSet in a namespace. members are of its spec; a container a that they
// name gets an image.
func contentOf(t *testing.T, namespace, members string) *unstructured.Unstructured {
	t.Helper()
	return newSidecarSet(t, namespace, "selector: {matchLabels: {app: content}}\nupdateStrategy: {type: NotUpdate}\n"+inNamespace+members+"\n")
}

// container is a container with members, beside volumes that it may use.
func container(members string) string {
	return "containers: [{name: a, image: \"example.com/a:v1\", " + members + "}]\n" +
		"volumes: [{name: v}, {name: w, persistentVolumeClaim: {claimName: c}}]"
}

func volume(members string) string {
	return "containers: [{name: a, image: \"example.com/a:v1\"}]\nvolumes: [{name: v, " + members + "}]"
}

// causesOf are the fields because of which a SidecarSet is refused.
func causesOf(err error) (fields []string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field)
	}
	return fields
}

// Rule 34: what the API server refuses in each Pod, it refuses when the SidecarSet is applied.
// Its causes have the paths of the SidecarSet.
func TestTheAPIServersRulesHoldForSidecarSets(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	for spec, want := range map[string]string{
		container(`restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]`):                                                 "spec.containers[0].restartPolicy",
		container(`restartPolicy: Sometimes`):                                                                                                        "spec.containers[0].restartPolicy",
		container(`securityContext: {windowsOptions: {runAsUserName: ""}}`):                                                                          "spec.containers[0].securityContext.windowsOptions.runAsUserName",
		container(`securityContext: {privileged: true, allowPrivilegeEscalation: false}`):                                                            "spec.containers[0].securityContext",
		container(`securityContext: {seccompProfile: {type: Localhost}}`):                                                                            "spec.containers[0].securityContext.seccompProfile.localhostProfile",
		container(`ports: [{containerPort: 1, name: Web}]`):                                                                                          "spec.containers[0].ports[0].name",
		container(`ports: [{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9}]`):                                                       "spec.containers[0].ports[1].hostPort",
		container(`env: [{name: "a=b"}]`):                                                                                                            "spec.containers[0].env[0].name",
		container(`env: [{name: a, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]`):                                                   "spec.containers[0].env[0].valueFrom",
		container(`env: [{name: a, valueFrom: {fieldRef: {fieldPath: status.phase}}}]`):                                                              "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
		container(`env: [{name: a, valueFrom: {fileKeyRef: {volumeName: w, path: x, key: a}}}]`):                                                     "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName",
		container(`resources: {limits: {cpu: 1}, requests: {cpu: 2}}`):                                                                               "spec.containers[0].resources.requests",
		container(`resources: {limits: {hugepages-2Mi: 2Mi}}`):                                                                                       "spec.containers[0].resources",
		container(`resources: {claims: [{name: gpu}, {name: gpu}]}`):                                                                                 "spec.containers[0].resources.claims[1]",
		container(`resizePolicy: [{resourceName: cpu, restartPolicy: Never}]`):                                                                       "spec.containers[0].resizePolicy",
		container(`volumeMounts: [{name: v, mountPath: /a, mountPropagation: Bidirectional}]`):                                                       "spec.containers[0].volumeMounts.mountPropagation",
		container(`volumeMounts: [{name: v, mountPath: /a, subPath: a/../b}]`):                                                                       "spec.containers[0].volumeMounts.subPath",
		container(`volumeDevices: [{name: v, devicePath: /d}]`):                                                                                      "spec.containers[0].volumeDevices[0].name",
		container(`livenessProbe: {}`):                                                                                                               "spec.containers[0].livenessProbe",
		container(`livenessProbe: {exec: {command: [x]}, successThreshold: 2}`):                                                                      "spec.containers[0].livenessProbe.successThreshold",
		container(`lifecycle: {preStop: {sleep: {seconds: -1}}}`):                                                                                    "spec.containers[0].lifecycle.preStop.sleep",
		container(`imagePullPolicy: Sometimes`):                                                                                                      "spec.containers[0].imagePullPolicy",
		`initContainers: [{name: i, image: b, livenessProbe: {exec: {command: [x]}}}]`:                                                               "spec.initContainers[0].livenessProbe",
		`containers: [{name: a, image: b, ports: [{containerPort: 1, hostPort: 9}]}, {name: c, image: b, ports: [{containerPort: 1, hostPort: 9}]}]`: "spec.containers[1].ports[0].hostPort",
		volume(`hostPath: {path: /a/../b}`):                                                                                                          "spec.volumes[0].hostPath.path",
		volume(`secret: {secretName: s, defaultMode: 512}`):                                                                                          "spec.volumes[0].secret.defaultMode",
		volume(`projected: {sources: [{secret: {name: s, items: [{key: k, path: p}]}}, {configMap: {name: s, items: [{key: k, path: p}]}}]}`):        "spec.volumes[0].projected",
		volume(`projected: {sources: [{podCertificate: {}}]}`):                                                                                       "spec.volumes[0].projected.sources[0].podCertificate.signerName",
		volume(`ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce]}}}`):                                                           "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]",
		volume(`csi: {}`):                     "spec.volumes[0].csi.driver",
		volume(`iscsi: {}`):                   "spec.volumes[0].iscsi.targetPortal",
		volume(`fc: {targetWWNs: [a]}`):       "spec.volumes[0].fc.lun",
		volume(`azureDisk: {kind: x}`):        "spec.volumes[0].azureDisk.diskName",
		volume(`quobyte: {}`):                 "spec.volumes[0].quobyte.registry",
		volume(`image: {pullPolicy: Never}`):  "spec.volumes[0].image.reference",
		volume(`nfs: {server: s, path: x}`):   "spec.volumes[0].nfs.path",
		volume(`flocker: {datasetName: a/b}`): "spec.volumes[0].flocker.datasetName",
	} {
		err := api.Create(t.Context(), contentOf(t, namespace, spec), client.DryRunAll)
		if got := causesOf(err); !slices.Contains(got, want) {
			t.Errorf("%s\nis refused for %q, want %s: %v", spec, got, want, err)
		}
	}
}

// All problems come at once, those that the rules find and those that the API server finds.
func TestAllProblemsComeAtOnce(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	set := contentOf(t, namespace, `initContainers: [{name: log, image: "b:1", env: [{name: "a=b"}], volumeMounts: [{name: none, mountPath: /a}], ports: [{containerPort: 1, name: Up}]}]`+"\npatchPodMetadata: [{}]")
	err := api.Create(t.Context(), set, client.DryRunAll)
	want := []string{"spec.initContainers[0].volumeMounts[0].name", "spec.patchPodMetadata[0].annotations", "spec.initContainers[0].ports[0].name", "spec.initContainers[0].env[0].name"}
	for _, field := range want {
		if got := causesOf(err); !slices.Contains(got, field) || len(got) != len(want)+1 { // and the whitelist
			t.Errorf("refused for %q, want %q", got, want)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "(container log)") {
		t.Errorf("the refusal does not name the container: %v", err)
	}
}

// A SidecarSet may ask for what some Pods have, and other Pods lack.
func TestWhatOnlySomePodsCanHaveIsAccepted(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	for _, members := range []string{
		`resources: {claims: [{name: gpu, request: a}, {name: gpu, request: b}]}`,
		`lifecycle: {preStop: {sleep: {seconds: 4500}}}`,
		`lifecycle: {stopSignal: SIGUSR1}`,
		`lifecycle: {stopSignal: SIGTERM}, securityContext: {windowsOptions: {runAsUserName: x}}`,
		`securityContext: {windowsOptions: {hostProcess: true}}, ports: [{containerPort: 1}]`,
		`securityContext: {procMount: Unmasked}`,
		`resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]`,
	} {
		for _, list := range []string{"containers", "initContainers"} {
			restart := map[string]string{"initContainers": "restartPolicy: Always, "}[list]
			set := contentOf(t, namespace, list+": [{name: a, image: b, "+restart+members+"}]")
			if err := api.Create(t.Context(), set, client.DryRunAll); err != nil {
				t.Errorf("%s: %v", members, err)
			}
		}
	}
}

// The author learns of each member that does not reach Pods: the API server does not know it, or
// drops it without a word because its feature is switched off.
func TestMembersThatDoNotReachPodsAreNamed(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	author := newUser(t, cluster, api, "dropped", namespace+"/system:aggregate-to-edit")
	var many []string
	for i := range 150 {
		many = append(many, fmt.Sprintf("m%03d%s: 1", i, strings.Repeat("x", 60)))
	}
	const unknown, off = "is unknown to this API server, which drops it from Pods", "because the feature that has it is switched off"
	for members, want := range map[string][]string{
		`novel: 1, livenessProbe: {exec: {command: [x]}, fresh: {a: b}}`: {"spec.containers[0].livenessProbe.fresh: " + unknown, "spec.containers[0].novel: " + unknown},
		`novel: {}`: {"spec.containers[0].novel: " + unknown},
		`livenessProbe: {httpGet: {port: 1, protocol: H2C}}`: {"spec.containers[0].livenessProbe.httpGet.protocol: is dropped from Pods by this API server, " + off},
		strings.Join(many, ", "):                             {"spec.containers[0].m009", "spec: the API server drops 140 more members of containers and volumes from Pods; correct or remove them"},
		`resources: {limits: {cpu: "0.50"}}, stdin: false, env: [{name: A, value: ""}], securityContext: {}, args: []`: nil,
	} {
		if err := author.Create(t.Context(), contentOf(t, namespace, "containers: [{name: a, image: \"b:1\", "+members+"}]"), client.DryRunAll); err != nil {
			t.Errorf("%.100s: %v", members, err)
		}
		told := author.told()
		for _, line := range want {
			if !strings.Contains(told, line) {
				t.Errorf("%.100s: the author was told %q, want %q", members, told, line)
			}
		}
		if strings.Count(told, " from Pods") > 11 || want == nil && strings.Contains(told, " from Pods") {
			t.Errorf("%.100s: the author was told %q", members, told)
		}
	}
}

const unchecked = "spec: the API server could not check the containers and volumes"

// A policy may refuse PodTemplates, with the status of a fault. Then no author is refused. An
// update of other members is not even a question.
func TestAPolicyAboutPodTemplatesRefusesNoSidecarSet(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	author := newUser(t, cluster, api, "policed", namespace+"/system:aggregate-to-edit")
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namespace + "-templates"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: ofTemplates}}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "!" + isPoliced(namespace), Message: "no templates here"}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	for _, object := range []client.Object{policy, binding} {
		create(t, object)
		t.Cleanup(func() { _ = api.Delete(context.WithoutCancel(t.Context()), object) })
	}
	set := policed(t, namespace, "v1", "")
	await.Eventually(t, "the policy", func(ctx context.Context) error {
		err := author.Create(ctx, set.DeepCopy(), client.DryRunAll)
		if told := author.told(); err != nil || !strings.Contains(told, unchecked) || !strings.Contains(told, "no templates here") {
			return fmt.Errorf("the author is answered %w and told %q", err, told)
		}
		return nil
	})
	create(t, set)
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	if err := author.Patch(t.Context(), set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"injectionStrategy":{"paused":true}}}`))); err != nil {
		t.Errorf("pausing: %v", err)
	}
	if told := author.told(); strings.Contains(told, unchecked) {
		t.Errorf("pausing asks about containers: %q", told)
	}
}

// A SidecarSet with a fault was stored while a webhook of others could not be called. The fault
// does not hold up its cure.
func TestAFaultThatWasStoredUncheckedDoesNotHoldUpItsCure(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	author := newUser(t, cluster, api, "unchecked", namespace+"/system:aggregate-to-edit")
	const fault = `{name: "a=b"}`
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "nobody.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")},
			Rules: []admissionregistrationv1.RuleWithOperations{ofTemplates}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			MatchConditions:         []admissionregistrationv1.MatchCondition{{Name: "policed", Expression: isPoliced(namespace)}},
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	create(t, webhook)
	set := policed(t, namespace, "v1", fault)
	await.Eventually(t, "the webhook", func(ctx context.Context) error {
		err := author.Create(ctx, set.DeepCopy(), client.DryRunAll)
		if told := author.told(); err != nil || !strings.Contains(told, unchecked) || !strings.Contains(told, "nobody.example.com") {
			return fmt.Errorf("the author is answered %w and told %q", err, told)
		}
		return nil
	})
	create(t, set)
	t.Cleanup(func() { deleteSidecarSet(t, set) })

	if err := api.Delete(t.Context(), webhook); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "no webhook", func(ctx context.Context) error {
		err := api.Create(ctx, policed(t, namespace, "v1", fault), client.DryRunAll)
		if !slices.Contains(causesOf(err), "spec.containers[0].env[0].name") {
			return fmt.Errorf("a faulty SidecarSet is answered %w", err)
		}
		return nil
	})
	change := func(tag, env string) error {
		updated := policed(t, namespace, tag, env)
		patch, err := json.Marshal(map[string]any{"spec": updated.Object["spec"]})
		if err != nil {
			t.Fatal(err)
		}
		return author.Patch(t.Context(), set.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	}
	if err := change("v2", fault); err != nil {
		t.Errorf("a new image: %v", err)
	}
	if told := author.told(); !strings.Contains(told, "spec.containers[0].env[0].name") || !strings.Contains(told, "(the stored SidecarSet has this problem already)") {
		t.Errorf("the author of the new image was told %q", told)
	}
	if err := change("v3", fault+`, {name: "c=d"}`); !slices.Equal(causesOf(err), []string{"spec.containers[0].env[1].name"}) {
		t.Errorf("one more fault: %v", err)
	}
	if err := change("v3", ""); err != nil {
		t.Errorf("the cure: %v", err)
	}
}

// policed is a SidecarSet whose container is called like its namespace.
func policed(t *testing.T, namespace, tag, env string) *unstructured.Unstructured {
	t.Helper()
	return contentOf(t, namespace, "containers: [{name: "+namespace+", image: \"example.com/a:"+tag+"\", env: ["+env+"]}]")
}

// isPoliced is a condition about the templates of policed SidecarSets of a namespace.
func isPoliced(namespace string) string {
	return fmt.Sprintf("object.template.spec.containers.exists(c, c.name == %q)", namespace)
}

var ofTemplates = admissionregistrationv1.RuleWithOperations{
	Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
	Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"podtemplates"}},
}
