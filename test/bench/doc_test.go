// Package bench measures one Pod admission, from the bytes of the AdmissionReview to the bytes of
// the answer, and compares it with a comparator that does the same in the usual way. In benchmarks, all that
// is compared takes turns. Times depend on the machine and its load: use only the ratios, allocations and bytes.
package bench
