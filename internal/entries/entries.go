// Package entries plans the webhook entries that make the API server call us
// for the Pods that SidecarSets select and for no others: which entries there
// have to be, in which configuration object each stands, and what each says.
//
// It is pure: values in, values out. Who writes the objects, and when an entry
// may go, is the business of controllers.
package entries

import "fmt"

// MaxConfigurations bounds how many configuration objects there are.
const MaxConfigurations = 16

// LabelConfiguration marks the configuration objects that hold planned entries.
const LabelConfiguration = "sidecarset.io/pod-webhooks"

// ConfigurationName is the name of the i-th configuration object. Objects exist
// only while they hold entries.
func ConfigurationName(i int) string { return fmt.Sprintf("sidecarset-pods-%d", i) }
