// Package difftest tests random redirections. Each Redirect is applied by each backend in a world of network
// namespaces, each random packet is sent, and all backends and the tracer must agree on where it ends up.
//
// The tests draw from Cases, so that a failure shrinks to the smallest Redirect and packets that still fail.
package difftest
