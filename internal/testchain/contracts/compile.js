// Compiles every .sol file beside this one and prints the ABI and the code of each contract.
// "sources" lets a test see, without a compiler, that the output belongs to the sources.
const fs = require('fs'), path = require('path'), crypto = require('crypto'), solc = require('solc')

const files = fs.readdirSync(__dirname).filter(f => f.endsWith('.sol')).sort()
const sources = Object.fromEntries(files.map(f => [f, { content: fs.readFileSync(path.join(__dirname, f), 'utf8') }]))
const out = JSON.parse(solc.compile(JSON.stringify({
  language: 'Solidity',
  sources,
  settings: {
    evmVersion: 'cancun', // what every node of the last years runs
    optimizer: { enabled: true, runs: 200 },
    metadata: { appendCBOR: false }, // the same code wherever it is compiled
    outputSelection: { '*': { '*': ['abi', 'evm.bytecode.object'] } },
  },
})))
if (out.errors) {
  console.error(out.errors.map(e => e.formattedMessage).join('\n'))
  process.exit(1)
}

const contracts = []
for (const found of Object.values(out.contracts)) {
  for (const [name, c] of Object.entries(found)) contracts.push({ name, abi: c.abi, bin: c.evm.bytecode.object })
}
const sha256 = Object.fromEntries(files.map(f => [f, crypto.createHash('sha256').update(sources[f].content).digest('hex')]))
// One line a contract, so that a diff shows which one changed.
console.log(`{"version": ${JSON.stringify(solc.version())},
"sources": ${JSON.stringify(sha256)},
"contracts": [
${contracts.map(c => JSON.stringify(c)).join(',\n')}
]}`)
