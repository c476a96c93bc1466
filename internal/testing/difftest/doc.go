// Package difftest tests random redirections. Each Redirect is applied by each backend in a world of network
// namespaces, random connections are opened and spoken over both ways, and all backends and the tracer must agree on who
// answers, whom that sees, and what fails. TestLostRules takes rules away by which answers find their way.
//
// The tests draw from Cases, so that a failure shrinks to the smallest Redirect and connections that still fail.
package difftest
