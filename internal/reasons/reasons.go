// Package reasons is the table of the words by which the status of a SidecarSet says why: what each means,
// and what a user does about it. The status, the plugin, docs/reference/status.md and
// docs/troubleshooting.md read it. The words themselves are constants of the API and of internal/inplace.
package reasons

import (
	"slices"
	"strings"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
)

// Part is the part of the status that a reason is in.
type Part string

// The parts.
const (
	Ready       Part = "ready"       // the condition Ready
	Required    Part = "required"    // the condition Required
	Progressing Part = "progressing" // the condition Progressing
	Degraded    Part = "degraded"    // the condition Degraded
	Waiting     Part = "doing"       // what the Pod does that a rollout waits for, in messages of Progressing
	Uninjected  Part = "uninjected"  // status.uninjected
	Blocked     Part = "blocked"     // status.blockedPods
	Event       Part = "events"      // Events that are about no condition
)

// Reason is one word. A word may be in several parts.
type Reason struct {
	Name string
	Part Part
	// Meaning and Remedy are sentences without a period, in Markdown, with links as in
	// docs/troubleshooting.md. Remedy is "" if there is nothing to do.
	Meaning, Remedy string
	// Passes: it ends without a user, so a tool that waits continues to wait.
	Passes bool
	// Recreate: a new Pod has what this one lacks.
	Recreate bool
}

// Of returns the reasons of a part, in the order of the pages.
func Of(part Part) (some []Reason) {
	for _, r := range table {
		if r.Part == part {
			some = append(some, r)
		}
	}
	return some
}

// Find returns a reason of a part; false if the part does not have it.
func Find(part Part, name string) (Reason, bool) {
	i := slices.IndexFunc(table, func(r Reason) bool { return r.Part == part && r.Name == name })
	if i < 0 {
		return Reason{}, false
	}
	return table[i], true
}

// Plain returns Markdown as a terminal shows it: without backquotes.
func Plain(markdown string) string { return strings.ReplaceAll(markdown, "`", "") }

const recreate = "recreate the Pod"

var table = []Reason{
	{Name: appsv1beta1.ReasonInjecting, Part: Ready, Meaning: "the next selected Pod is injected: the reason of a true Ready"},
	{Name: appsv1beta1.ReasonPending, Part: Ready, Meaning: "the Pod webhook is not written yet, or an API server may not use it yet",
		Remedy: "wait. If it stays, do what the message says: restart the API server that it names, or [exempt the request](install.md#other-admission-policies) if a policy refuses", Passes: true},
	{Name: appsv1beta1.ReasonNothingSelected, Part: Ready, Meaning: "the selectors contradict themselves, or select only excluded namespaces", Remedy: "correct the label that the message names"},
	{Name: appsv1beta1.ReasonInvalid, Part: Ready, Meaning: "the stored SidecarSet, or the revision that it injects, cannot be used; its Pods are refused", Remedy: "correct the field that the message names"},
	{Name: appsv1beta1.ReasonConflict, Part: Ready, Meaning: "it and an older SidecarSet write the same part of a Pod; Pods that both select are refused", Remedy: "rename the part, or narrow a selector"},
	{Name: appsv1beta1.ReasonRevisionNotStable, Part: Ready, Meaning: "new Pods get an earlier revision, because `sidecarset.io/new-pods` is `Stable` and too few running Pods are available with the new one",
		Remedy: "[wait](rollouts.md#new-pods); if it stays, see why [the rollout is stuck](#the-rollout-is-stuck). To give it to new Pods now: `kubectl annotate sidecarset NAME sidecarset.io/new-pods-`", Passes: true},
	{Name: appsv1beta1.ReasonWebhookConfigurationMissing, Part: Ready, Meaning: "an object `sidecarset-pods-*` was deleted; its Pods get no sidecars",
		Remedy: "`kubectl apply --server-side -f install.yaml -l sidecarset.io/pod-webhooks`; [with Helm](helm.md#upgrade-and-rollback)"},
	{Name: appsv1beta1.ReasonWebhookConfigurationFull, Part: Ready, Meaning: "the object `sidecarset-pods-*` has no room for the Pod webhook; the message names the SidecarSets that fill it",
		Remedy: "use the same selectors in several of them, or shorter ones"},
	{Name: appsv1beta1.ReasonWebhookModified, Part: Ready, Meaning: "another program keeps editing the Pod webhook", Remedy: "the message has its field manager: configure it to ignore these objects"},
	{Name: appsv1beta1.ReasonNamespacesExcluded, Part: Ready, Meaning: "another program keeps every selected namespace out of the Pod webhook", Remedy: "select other namespaces, or configure that program"},
	{Name: appsv1beta1.ReasonWebhookRejected, Part: Ready, Meaning: "no Pod webhook can have these selectors", Remedy: "correct the field that the message names"},
	{Name: appsv1beta1.ReasonWebhookUnverified, Part: Ready, Meaning: "a quota, a policy or a missing right refuses the dry runs by which the leader asks whether API servers use the Pod webhook",
		Remedy: "exempt the [ConfigMaps under dry-run](install.md#other-admission-policies)", Passes: true},
	{Name: appsv1beta1.ReasonWebhookUnreachable, Part: Ready, Meaning: "one API server has got no answer from any replica for a minute, while others have",
		Remedy: "find what keeps that API server from TCP 9443 of the operator's Pods ([clouds](clouds.md))", Passes: true},
	{Name: appsv1beta1.ReasonNoReplica, Part: Ready, Meaning: "no replica has answered API servers for a minute, or none is ready",
		Remedy: "`kubectl -n sidecarset-system get pods`: if none is Ready, [the operator itself](#the-operator-itself); if they are, API servers cannot reach TCP 9443 ([clouds](clouds.md))", Passes: true},
	{Name: appsv1beta1.ReasonCertificateNotTrusted, Part: Ready, Meaning: "API servers do not accept the certificate", Remedy: "[compare and renew it](certificates.md#api-servers-do-not-trust-the-certificate)", Passes: true},
	{Name: appsv1beta1.ReasonCertificateExpired, Part: Ready, Meaning: "the certificate has expired", Remedy: "[compare and renew it](certificates.md#api-servers-do-not-trust-the-certificate)"},
	{Name: appsv1beta1.ReasonAnotherInjector, Part: Ready, Meaning: "another program injects SidecarSets", Remedy: "finish the [migration](migration.md)"},

	{Name: appsv1beta1.ReasonPolicyBound, Part: Required, Meaning: "the policy is installed, with the binding for the value of the label: the reason of a true Required"},
	{Name: appsv1beta1.ReasonPolicyMissing, Part: Required, Meaning: "the policy or a binding is not installed, so no Pod is refused",
		Remedy: "`kubectl apply --server-side -k config/required`, or `required.enabled` of the chart"},
	{Name: appsv1beta1.ReasonPolicyModified, Part: Required, Meaning: "the policy or a binding is of another version, was edited, or leaves out other namespaces than the operator; or the label has another value than `true` and `warn`",
		Remedy: "what the message says"},

	{Name: appsv1beta1.ReasonRollingOut, Part: Progressing, Meaning: "running Pods are being updated: the reason of a true Progressing", Remedy: "look at the Pod that the message names, and for its word below"},
	{Name: appsv1beta1.ReasonStalled, Part: Progressing, Meaning: "Pods wait, and no Pod was updated and none became available for ten minutes",
		Remedy: "apply a good image, or the old one ([a bad image](tasks/bad-image.md)). If INJECTION is not `Injecting` either, begin with [that](#ready-is-false)"},
	{Name: appsv1beta1.ReasonBlocked, Part: Progressing, Meaning: "the other Pods cannot be updated, or lack the sidecars", Remedy: "[the reasons](#a-pod-is-blocked)"},
	{Name: appsv1beta1.ReasonPodsNotReady, Part: Progressing, Meaning: "updated Pods are not Ready, and no other Pod waits for them", Remedy: "look at the Pods, and apply a good image"},
	{Name: appsv1beta1.ReasonPartitionReached, Part: Progressing, Meaning: "`updateStrategy.partition` or `.selector` excludes the other Pods", Remedy: "nothing"},
	{Name: appsv1beta1.ReasonPaused, Part: Progressing, Meaning: "`updateStrategy.paused` is true, or `maxUnavailable` is 0", Remedy: "`kubectl sidecarset rollout resume NAME`, or a larger `maxUnavailable`"},
	{Name: appsv1beta1.ReasonNotUpdate, Part: Progressing, Meaning: "`updateStrategy.type` is NotUpdate, which leaves running Pods alone", Remedy: "nothing"},
	{Name: appsv1beta1.ReasonInvalid, Part: Progressing, Meaning: "the update strategy cannot be used", Remedy: "correct the field that the message names"},
	{Name: appsv1beta1.ReasonDeleting, Part: Progressing, Meaning: "the SidecarSet is being deleted; running Pods are not updated", Remedy: "remove the finalizers that it waits for"},
	{Name: appsv1beta1.ReasonComplete, Part: Progressing, Meaning: "every matched Pod is updated, and no Pod is updating or failed",
		Remedy: "if Pods run the old image: the SidecarSet does not select them, or only fields changed that [make no Pod outdated](rollouts.md#what-can-change-in-place)"},

	{Name: appsv1beta1.ReasonNotAcknowledged, Part: Waiting, Meaning: "its node has not seen the update", Remedy: "wait a minute; then look at the node: `kubectl describe node NODE`"},
	{Name: appsv1beta1.ReasonTerminating, Part: Waiting, Meaning: "the kubelet stops the old container, for the Pod's grace period at most", Remedy: "wait for that time. If it stays, restart the kubelet of the node, or delete the Pod"},
	{Name: appsv1beta1.ReasonStartupProbe, Part: Waiting, Meaning: "a native sidecar has not passed its startup probe. The kubelet acts on no change until it passes or fails for good",
		Remedy: "apply a good image, then delete this Pod, or wait until the probe has failed `failureThreshold` times"},
	{Name: appsv1beta1.ReasonStarting, Part: Waiting, Meaning: "the new container does not run yet", Remedy: "wait for the image; `kubectl describe` the Pod shows what the kubelet does"},
	{Name: appsv1beta1.ReasonNotReady, Part: Waiting, Meaning: "the containers run, and the Pod is not Ready", Remedy: "look at the probes, of the sidecar and of the app"},
	{Name: appsv1beta1.ReasonMinReadySeconds, Part: Waiting, Meaning: "it is Ready, and not for long enough", Remedy: "nothing"},
	{Name: appsv1beta1.ReasonNotScheduled, Part: Waiting, Meaning: "it has no node", Remedy: "nothing; or see why it is not scheduled: `kubectl describe` the Pod"},
	{Name: string(inplace.NodeNotReady), Part: Waiting, Meaning: "its node failed after the update", Remedy: "look at the node"},
	{Name: appsv1beta1.ReasonUpdating, Part: Waiting, Meaning: "the operator updates it now", Remedy: "nothing"},

	{Name: appsv1beta1.ReasonSidecarsNotRunning, Part: Degraded, Meaning: "the sidecars of at least one updated Pod in twenty do not run; `status.notRunningPods` has the kubelet's reasons",
		Remedy: "[a sidecar does not start](#a-sidecar-does-not-start)"},
	{Name: appsv1beta1.ReasonRevisionNotRecorded, Part: Degraded, Meaning: "the leader cannot record the revision in a ControllerRevision, so running Pods are not updated", Remedy: "what the message says"},
	{Name: appsv1beta1.ReasonAsExpected, Part: Degraded, Meaning: "no action is needed"},

	{Name: appsv1beta1.ReasonOlderThanSidecarSet, Part: Uninjected, Meaning: "the Pod was created before the SidecarSet", Remedy: "recreate the Pod (step 3)", Recreate: true},
	{Name: appsv1beta1.ReasonMissedAtCreation, Part: Uninjected, Meaning: "when the Pod was created, API servers could not call the operator, or the SidecarSet was paused or did not select it", Remedy: "recreate the Pod (step 3)", Recreate: true},
	{Name: appsv1beta1.ReasonSidecarsMissing, Part: Uninjected, Meaning: "the Pod lists the SidecarSet and lacks a sidecar: the list was copied, or the sidecar is newer", Remedy: "recreate the Pod (step 3)", Recreate: true},
	{Name: appsv1beta1.ReasonRecordRemoved, Part: Uninjected, Meaning: "the record of the injection was removed from the Pod", Remedy: "recreate the Pod (step 3)", Recreate: true},

	{Name: string(inplace.ImmutableFieldChanged), Part: Blocked, Meaning: "more changed than an update in place can write", Remedy: recreate, Recreate: true},
	{Name: string(inplace.RevisionUnknown), Part: Blocked, Meaning: "the revision that the Pod was injected with is not recorded", Remedy: recreate, Recreate: true},
	{Name: string(inplace.RunToCompletion), Part: Blocked, Meaning: "a restart could end the Pod or fail its Job", Remedy: "let it finish; make the sidecar native"},
	{Name: string(inplace.RunsOnce), Part: Blocked, Meaning: "the sidecar's own restartPolicy is not Always, so the kubelet might never start it again", Remedy: recreate, Recreate: true},
	{Name: string(inplace.RestartRules), Part: Blocked, Meaning: "a restart rule of the Pod could restart all of its containers", Remedy: recreate, Recreate: true},
	{Name: string(inplace.MirrorPod), Part: Blocked, Meaning: "the Pod is the API server's copy of a static Pod", Remedy: "change the static Pod"},
	{Name: string(inplace.NodeTooOld), Part: Blocked, Meaning: "the node's kubelet is older than 1.32 and does not restart native sidecars", Remedy: "update the node, or " + recreate, Recreate: true},
	{Name: string(inplace.NodeNotReady), Part: Blocked, Meaning: "the node is not ready or gone", Remedy: "nothing: the leader updates the Pod when its node is ready"},
	{Name: string(inplace.UpdateTimedOut), Part: Blocked, Meaning: "the node has not carried out the update for ten minutes", Remedy: "look at the node, or " + recreate},
	{Name: string(inplace.WriteRejected), Part: Blocked, Meaning: "the API server refused the write", Remedy: "change the policy, quota or webhook that the message names"},
	{Name: string(inplace.WriteFailed), Part: Blocked, Meaning: "the API server did not carry out the write", Remedy: "nothing: the leader tries again"},
	{Name: string(inplace.WriteReverted), Part: Blocked, Meaning: "another program took the update back", Remedy: "find that webhook or controller"},
	{Name: string(inplace.UpdateImpossible), Part: Blocked, Meaning: "the leader cannot compute the update, or the write had no effect", Remedy: recreate, Recreate: true},
	{Name: string(inplace.ResourcesHeldElsewhere), Part: Blocked, Meaning: "another program has resized the sidecar", Remedy: "exclude the sidecar in that program, such as a vertical autoscaler, or " + recreate, Recreate: true},
	{Name: string(inplace.ResizeDeferred), Part: Blocked, Meaning: "the node has not enough free resources now", Remedy: "wait, or " + recreate},
	{Name: string(inplace.ResizeInfeasible), Part: Blocked, Meaning: "the node can never give the sidecar these resources", Remedy: recreate, Recreate: true},
	{Name: string(inplace.ResizeFailed), Part: Blocked, Meaning: "the kubelet could not carry out the resize", Remedy: "write a larger value, for example more memory than is used"},
	{Name: string(inplace.ResizeUnsupported), Part: Blocked, Meaning: "the API server is older than 1.33 and does not resize Pods", Remedy: "update Kubernetes, or " + recreate, Recreate: true},
	{Name: string(inplace.ResizeRestarts), Part: Blocked, Meaning: "the sidecar's resizePolicy asks for a restart, which could not be distinguished from a crash", Remedy: recreate, Recreate: true},
	{Name: string(inplace.RecordUnreadable), Part: Blocked, Meaning: "the annotation `sidecarset.io/in-place` cannot be read, so the Pod is not written", Remedy: "remove that annotation of the Pod"},

	{Name: appsv1beta1.ReasonInjectionConflict, Part: Event, Meaning: "a Pod was refused because of a SidecarSet: it does not fit the Pod or another SidecarSet, or it cannot be injected at all"},
	{Name: appsv1beta1.ReasonInjectionIncomplete, Part: Event, Meaning: "a Pod was injected, and it does not get all that the SidecarSet asks for"},
	{Name: appsv1beta1.ReasonNotUpgradable, Part: Event, Meaning: "Pods cannot be updated in place. The Event is as in OpenKruise"},
	{Name: appsv1beta1.ReasonPodUpdateRejected, Part: Event, Meaning: "the API server refused to update Pods"},
	{Name: appsv1beta1.ReasonContainerReset, Part: Event, Meaning: "the hot upgrade of a Pod was ended. The Event is as in OpenKruise"},
	{Name: appsv1beta1.ReasonContainerNotReset, Part: Event, Meaning: "the API server refused to end the hot upgrade of a Pod. The Event is as in OpenKruise"},
}
