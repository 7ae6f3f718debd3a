package entryplan

import (
	"encoding/json"
	"maps"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

const (
	// annotationRecent is in the object for provisional entries, and holds a recent.
	annotationRecent = "sidecarset.io/recent"
	// RecentAny is recorded instead of names: any SidecarSet may have been on its way.
	RecentAny = "*"
	// maxRecent bounds the names, since a stranger may have sent them: 32 are 11 KB at most.
	maxRecent = 32
)

// recent names the SidecarSets that were on their way into storage lately. Replicas may
// not know them yet. A replica or the leader records a name before it puts an entry on
// the fresh path for the SidecarSet, or in the same write. The leader removes a name a
// window after the last write that recorded it.
type recent struct {
	// Serial grows with each write that records a name.
	Serial int64 `json:"serial"`
	// Widened is the highest serial of a provisional entry. A version of the operator
	// that records no names does not raise it, so that its writes show.
	Widened int64                 `json:"widened"`
	Names   map[string]recentMark `json:"names"`
}

type recentMark struct {
	// Serial is that of the last write that recorded the name.
	Serial int64 `json:"serial"`
	// Content is the Content of the SidecarSet; "" if two writes recorded different ones:
	// the API server may have stored either.
	Content string `json:"content,omitempty"`
}

// Content identifies what a SidecarSet says about new Pods; "" if it has no UID. It is the
// same in the review of the SidecarSet and when the SidecarSet is stored. By it replicas
// and the leader, which may be of different versions, compare SidecarSets.
func Content(set *appsv1beta1.SidecarSet) string {
	if set.UID == "" {
		return ""
	}
	return hash(set.UID, set.Generation, set.Annotations, set.Spec.CustomVersion)
}

// Recent returns the SidecarSets that may have been stored less than a window ago, by
// name, with their Contents, from the annotations of the object for provisional entries.
// False if the record does not tell: then it may be any SidecarSet.
func Recent(annotations map[string]string) (contents map[string]string, ok bool) {
	r, ok := readRecent(annotations)
	if !ok || !readable(annotations, format) {
		return nil, false
	}
	if _, unnamed := r.Names[RecentAny]; unnamed {
		return nil, false
	}
	contents = make(map[string]string, len(r.Names))
	for name, mark := range r.Names {
		contents[name] = mark.Content
	}
	return contents, true
}

// readRecent returns what is recorded; false if it is not complete.
func readRecent(annotations map[string]string) (r recent, ok bool) {
	if err := json.Unmarshal([]byte(annotations[annotationRecent]), &r); err != nil || r.Names == nil {
		return recent{}, false
	}
	touched := map[string]int64{}
	if value, ok := annotations[annotationTouched]; ok {
		if err := json.Unmarshal([]byte(value), &touched); err != nil {
			return r, false
		}
	}
	return r, highest(touched) <= r.Widened
}

func highest(serials map[string]int64) (highest int64) {
	for _, serial := range serials {
		highest = max(highest, serial)
	}
	return highest
}

// Record plans that names of SidecarSets, with their Contents, are recorded, or
// RecentAny. False if there is no object for provisional entries: then no replica relies
// on names.
func Record(l Layout, contents map[string]string, s *Settings) (Change, bool) {
	p := newPlanning(l, s)
	p.record(contents)
	changes := p.changes()
	if last := len(changes) - 1; p.recent != nil {
		return changes[last], true
	}
	return Change{}, false
}

func (p *planning) record(contents map[string]string) {
	if p.layout[Provisional] == nil || len(contents) == 0 {
		return
	}
	p.edit(Provisional)
	r := p.recentNow()
	r.Serial = p.recentSerial(r)
	for name, content := range contents {
		known, ok := r.Names[name]
		switch {
		case ok && known.Content != content:
			content = ""
		case !ok && len(r.Names) >= maxRecent:
			r.Names = map[string]recentMark{RecentAny: {Serial: r.Serial}}
			return // for the others as well
		}
		r.Names[name] = recentMark{r.Serial, content}
	}
}

// recentNow is what is recorded after the changes so far. A record that cannot be read, or
// lacks a name, counts as RecentAny.
func (p *planning) recentNow() *recent {
	if p.recent == nil {
		r, ok := readRecent(p.before[Provisional].Annotations)
		if r.Names == nil {
			r.Names = map[string]recentMark{}
		}
		if !ok {
			r.Serial = p.recentSerial(&r)
			r.Names[RecentAny] = recentMark{Serial: r.Serial}
		}
		p.recent = &r
	}
	return p.recent
}

func (p *planning) recentSerial(r *recent) int64 { return max(r.Serial+1, p.nextSerial(Provisional)) }

// forget removes names a window after they were recorded.
func (p *planning) forget() {
	c := p.layout[Provisional]
	if c == nil || c.Annotations[annotationRecent] == "" {
		return
	}
	for name, mark := range maps.Clone(p.recentNow().Names) {
		window := p.state.Windows[recentKey(name)]
		if window.touched == mark.Serial && p.over(window.Since) {
			p.edit(Provisional)
			delete(p.recent.Names, name)
		}
	}
}

// setRecent writes what is recorded into the object for provisional entries.
func (p *planning) setRecent(c *admissionregistrationv1.MutatingWebhookConfiguration) {
	if p.recent == nil && c.Annotations[annotationRecent] == "" {
		return
	}
	r := p.recentNow()
	r.Widened = highest(Touched(c))
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // names and numbers
	}
	annotate(c, annotationRecent, string(value))
}

// recentKey is the key of a recorded name in Windows. No entry has such a name.
func recentKey(name string) string { return "recent " + name }

// recentMarks are the serials of names, as Windows follows them.
func recentMarks(c *admissionregistrationv1.MutatingWebhookConfiguration) map[string]int64 {
	marks := map[string]int64{}
	if c == nil {
		return marks
	}
	r, _ := readRecent(c.Annotations)
	for name, mark := range r.Names {
		marks[recentKey(name)] = mark.Serial
	}
	return marks
}
