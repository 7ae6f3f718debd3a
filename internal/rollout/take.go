package rollout

import "cmp"

// takeNotReady takes Pods that are not Ready, and returns why the others wait. They use no budget. One
// more is written while fewer updated Pods are not Ready than are Ready, and fewer than a tenth of all.
func (d *decision) takeNotReady(pods []*Pod) (wait Rule) {
	line := newLine(pods)
	for p := line.next(); p != nil; p = line.next() {
		switch l := p.look(d.now); {
		case d.updatedNotReady >= max(1, min(d.UpdatedReady, d.Total/10)):
			return Repairs
		case d.room <= 0 && !l.byUpdate():
			wait = Partition
		default:
			d.Write = append(d.Write, p)
			d.repair = cmp.Or(d.repair, p)
			d.updatedNotReady++
			d.room--
			if l.byUpdate() {
				d.unavailable++
			}
		}
	}
	return wait
}

// takeAvailable takes Pods that are available, and returns why the others wait, and for a WorkloadShare,
// the Pod that has it.
func (d *decision) takeAvailable() (wait Rule, holder *Pod) {
	if len(d.available) == 0 {
		return NoRule, nil
	}
	if wait = d.limit(); wait != NoRule {
		return wait, nil
	}
	d.countWorkloads()
	line := d.scattered(d.available)
	for p := line.next(); p != nil; p = line.next() {
		if limit := d.limit(); limit != NoRule {
			return limit, nil
		}
		w := d.workloadOf(p.Summary)
		if w.updating >= max(1, d.Numbers.Budget*w.pods/d.Total) {
			wait, holder = WorkloadShare, w.who.Pod
			continue
		}
		d.Write = append(d.Write, p)
		d.tried = cmp.Or(d.tried, p)
		d.budgetUsed++
		d.unavailable++
		d.room--
		w.updating++
		if w.who.Pod == nil {
			w.who = look{Pod: p, has: true, at: d.now}
		}
	}
	return wait, holder
}

// limit returns why no further available Pod is written.
func (d *decision) limit() Rule {
	switch {
	case d.budgetUsed >= d.Numbers.Budget:
		return Budget
	case d.unavailable >= max(1, d.Available):
		return SlowStart
	case d.room <= 0:
		return Partition
	case !d.Stored:
		return Storing
	}
	return NoRule
}

// takeUnassigned takes Pods that have no node, and returns why the others wait. They run nothing: the
// write costs nothing, and shows nothing.
func (d *decision) takeUnassigned() (wait Rule) {
	line := newLine(d.unassigned)
	for p := line.next(); p != nil; p = line.next() {
		if d.room <= 0 {
			return Partition
		}
		d.Write = append(d.Write, p)
		d.room--
	}
	return NoRule
}
