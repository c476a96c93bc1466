// Package agreementtest holds, by a test, that whoever decides on a pod decides alike:
// the dialect's plan, the plugin, repair and the rule program.
package agreementtest
