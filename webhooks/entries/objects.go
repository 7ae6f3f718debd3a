package entries

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
)

// Events about SidecarSets, which have no namespace, are in namespace default.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

const (
	// restoreCommand brings back the objects for entries, and changes nothing else. It
	// works with the file that the operator was installed from.
	restoreCommand = "kubectl apply --server-side -f dist/install.yaml -l " + entryplan.LabelConfiguration
	// unlockCommand has this version of the operator use objects of a newer one.
	unlockCommand = "kubectl annotate mutatingwebhookconfigurations -l " + entryplan.LabelConfiguration + " " + entryplan.AnnotationFormat + "-"
	// maxTold bounds for how many SidecarSets there is an event: all say the same.
	maxTold = 20
)

// noObject says why no object can hold an entry; "" if one can.
func (l *leader) noObject(layout entryplan.Layout) string {
	if layout.Exist() {
		return ""
	}
	for _, c := range l.webhooks.store.all() {
		if c != nil && !entryplan.Readable(c) {
			return fmt.Sprintf("A newer version of the operator has written MutatingWebhookConfiguration %s and the others for entries, in a format that this version cannot read. "+
				"Run that version again; or, to stay with this one, have it write them anew: %s", c.Name, unlockCommand)
		}
	}
	return fmt.Sprintf("There is no MutatingWebhookConfiguration to hold the webhook entry: %s to %s have been deleted, and the operator has no right to make one. "+
		"Apply them again, from the file that the operator was installed with: %s",
		entryplan.ConfigurationName(0), entryplan.ConfigurationName(entryplan.MaxConfigurations-1), restoreCommand)
}

// tellMissing has an event for SidecarSets when no object can hold their entries.
func (l *leader) tellMissing(v *view) {
	problem := ""
	if len(v.homeless) > 0 {
		problem = l.noObject(v.layout)
	}
	if problem == l.missing || l.events == nil {
		return
	}
	told := 0
	for _, program := range v.programs {
		concerned := slices.Contains(v.homeless, program.Name())
		if problem == "" || !concerned || told == maxTold {
			continue
		}
		told++
		about := &corev1.ObjectReference{
			APIVersion: appsv1beta1.GroupVersion.String(), Kind: appsv1beta1.Kind.Kind, Name: program.Name(), UID: program.Set.UID, ResourceVersion: program.Set.ResourceVersion,
		}
		l.events.Eventf(about, nil, corev1.EventTypeWarning, appsv1beta1.ReasonEntryMissing, "WriteEntry", "%s", problem)
	}
	l.missing = problem
}
