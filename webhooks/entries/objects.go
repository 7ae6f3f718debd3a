package entries

import (
	"fmt"

	"github.com/sidecarset/operator/internal/entryplan"
)

const (
	// restoreCommand brings back the objects for entries, and changes nothing else. It
	// works with the file that the operator was installed from.
	restoreCommand = "kubectl apply --server-side -f dist/install.yaml -l " + entryplan.LabelConfiguration
	// unlockCommand makes this version of the operator use objects that a newer one wrote.
	unlockCommand = "kubectl annotate mutatingwebhookconfigurations -l " + entryplan.LabelConfiguration + " " + entryplan.AnnotationFormat + "-"
)

// noObject says why no object can hold an entry; "" if one can.
func (l *leader) noObject(layout entryplan.Layout) string {
	if layout.Exist() {
		return ""
	}
	for _, c := range l.webhooks.store.all() {
		if c != nil && !entryplan.Readable(c.Annotations) {
			return fmt.Sprintf("A newer version of the operator has written MutatingWebhookConfiguration %s and the others for entries, in a format that this version cannot read. "+
				"Run that version again; or, to stay with this one, have it write them anew: %s", c.Name, unlockCommand)
		}
	}
	return fmt.Sprintf("There is no MutatingWebhookConfiguration to hold the webhook entry: %s to %s have been deleted, and the operator has no right to make one. "+
		"Apply them again, from the file that the operator was installed with: %s",
		entryplan.ConfigurationName(0), entryplan.ConfigurationName(entryplan.MaxConfigurations-1), restoreCommand)
}
