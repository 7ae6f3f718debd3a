package entryplan

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

const (
	// annotationRecent is in the object for provisional entries, and holds a recent.
	annotationRecent = "sidecarset.io/recent"
	// RecentAny is recorded instead of names: any SidecarSet may have been between
	// admission and storage.
	RecentAny = "*"
	// maxRecent bounds the size of all recorded names in bytes, because a stranger may have
	// sent them. It allows 90 names of 25 bytes, or 29 of the longest.
	maxRecent = 9_900
	// markBytes is what a mark takes besides its name and content.
	markBytes = 48
)

// recent has the names of SidecarSets that were between admission and storage recently.
// Replicas may not have them in their snapshots yet. A replica or the leader records a
// name before it puts an entry on the fresh path for the SidecarSet, or in the same
// write. The leader removes a name a window after the last write that recorded it.
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
	// Content is the newest Content of the SidecarSet; see newest.
	Content string `json:"content,omitempty"`
}

// Content identifies the part of a SidecarSet that decides about new Pods; "" if it has
// no UID. It is the same in the review of the SidecarSet and when the SidecarSet is
// stored. By it replicas and the leader, which may be of different versions, compare
// SidecarSets. It begins with the generation and with what identifies the object; see
// newest.
func Content(set *appsv1beta1.SidecarSet) string {
	if set.UID == "" {
		return ""
	}
	return fmt.Sprintf("%d.%s.%s", set.Generation, hash(set.UID)[:8], hash(set.UID, set.Generation, saying(set.Annotations), set.Spec.CustomVersion))
}

// saying returns the annotations without what kubectl apply keeps for itself, which
// replicas and the leader do not hold.
func saying(annotations map[string]string) map[string]string {
	annotations = maps.Clone(annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	if len(annotations) == 0 {
		return nil
	}
	return annotations
}

// newest merges two Contents of SidecarSets of one name. Of one object, it returns the
// Content of the later generation: a replica that has it has the stored one, because
// the stored generation never falls. For two Contents of one generation it returns one
// that no SidecarSet has, because either may be stored. For two objects it returns "".
func newest(a, b string) string {
	generationA, objectA, okA := parseContent(a)
	generationB, objectB, okB := parseContent(b)
	switch {
	case a == b:
		return a
	case !okA || !okB || objectA != objectB:
		return ""
	case generationA > generationB:
		return a
	case generationA < generationB:
		return b
	}
	return fmt.Sprintf("%d.%s.", generationA, objectA)
}

// parseContent returns what a Content begins with; false if an earlier version of the
// operator has made it.
func parseContent(content string) (generation int64, object string, ok bool) {
	parts := strings.Split(content, ".")
	if len(parts) != 3 {
		return 0, "", false
	}
	generation, err := strconv.ParseInt(parts[0], 10, 64)
	return generation, parts[1], err == nil
}

// Recent returns the SidecarSets that may have been stored less than a window ago, by
// name, with their Contents, from the annotations of the object for provisional entries.
// It returns false if the record is incomplete: then any SidecarSet may have been stored.
func Recent(annotations map[string]string) (contents map[string]string, ok bool) {
	r, ok := readRecent(annotations)
	if !ok || !Readable(annotations) {
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

// recent returns what is recorded in the object for provisional entries.
func (l *Layout) recent() (r recent, ok bool) {
	if c := l[Provisional]; c != nil {
		return readRecent(c.Annotations)
	}
	return recent{}, false
}

func highest(serials map[string]int64) (highest int64) {
	for _, serial := range serials {
		highest = max(highest, serial)
	}
	return highest
}

// Record plans to record names of SidecarSets with their Contents, or RecentAny. It
// returns false if the object for provisional entries does not exist: then no replica
// relies on names.
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
		case ok:
			content = newest(known.Content, content)
		case r.bytes()+len(name)+len(content)+markBytes > maxRecent:
			r.Names = map[string]recentMark{RecentAny: {Serial: r.Serial}}
			return // RecentAny covers the other names, too
		}
		r.Names[name] = recentMark{r.Serial, content}
	}
}

// bytes estimates how many bytes the names take where they are stored.
func (r *recent) bytes() (bytes int) {
	for name, mark := range r.Names {
		bytes += len(name) + len(mark.Content) + markBytes
	}
	return bytes
}

// recentNow returns the record after the changes so far. A record that cannot be read, or
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

// Unrecorded returns those of the Contents, by name, that have to be recorded before the
// leader writes entries for them. It leaves out those that are recorded already and stay so
// for long enough: the leader first saw the record less than an admission window ago.
func (w Windows) Unrecorded(l Layout, contents map[string]string, now time.Time, admission time.Duration) map[string]string {
	r, ok := l.recent()
	if !ok {
		r = recent{} // incomplete
	}
	stays := func(name string) bool {
		mark, ok := r.Names[name]
		known := w[recentKey(name)]
		return ok && (known.touched != mark.Serial || now.Sub(known.Since) <= admission)
	}
	unrecorded := map[string]string{}
	for name, content := range contents {
		known := stays(name) && newest(r.Names[name].Content, content) == r.Names[name].Content
		if !known && !stays(RecentAny) {
			unrecorded[name] = content
		}
	}
	return unrecorded
}

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
