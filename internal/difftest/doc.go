// Package difftest makes random redirections and random packets, for the test
// that holds the tracer and every backend to the kernel: each Redirect is put
// into a world of network namespaces by each backend, each packet is sent, and
// where it ends up must be the same under all of them and be what the tracer
// said.
//
// The central type is [Case]. Cases come from [Cases], so that a failure
// shrinks to the smallest one that still fails.
package difftest
