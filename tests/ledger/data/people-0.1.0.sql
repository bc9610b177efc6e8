-- A ledger as tacit 0.1.0 wrote it (tables of version 1), as SQLite's .dump prints it.
BEGIN TRANSACTION;
CREATE TABLE tacit_entries (
	dataset VARCHAR(200) NOT NULL, 
	seq INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	PRIMARY KEY (dataset, seq)
);
INSERT INTO "tacit_entries" VALUES('people',0,'{"dataset":"people","format":1,"kind":"register","previous":"0000000000000000000000000000000000000000000000000000000000000000","seq":0,"terms":{"adjacency":"add-remove","charge_delta":1.0000000000000001e-07,"delta":1e-05,"epsilon":10.0,"fingerprint":"blake2b-keyed:5845909495c05547797ffc50f6fbf0c8","rule":"sum","size_public":true,"unit":"person"},"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[]}}','ae17cd48d13e46aad76de7e5c8986f07fc97a00b586ee144a15806588938b540');
INSERT INTO "tacit_entries" VALUES('people',1,'{"charge":"c0980e2ef5024449aec6bd93b7847e4e","dataset":"people","format":1,"kind":"reserve","mechanism":{"adjacency":null,"epsilon":0.5,"kind":"PureDP","unit":"person","version":1},"previous":"ae17cd48d13e46aad76de7e5c8986f07fc97a00b586ee144a15806588938b540","price":{"delta":0.0,"epsilon":0.5},"purpose":"release 0.5","seq":1,"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[0.5]}}','89b74fd69d787a0c7aa78edde65381a5156bfd3b19ac5256f85f6cf90270d177');
INSERT INTO "tacit_entries" VALUES('people',2,'{"charge":"c0980e2ef5024449aec6bd93b7847e4e","dataset":"people","format":1,"kind":"confirm","previous":"89b74fd69d787a0c7aa78edde65381a5156bfd3b19ac5256f85f6cf90270d177","seq":2,"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[0.5]}}','22451eb113a48f0e0f85111e14b7fec4acb93191e8f6bdddf4402fd8be45d028');
INSERT INTO "tacit_entries" VALUES('people',3,'{"charge":"7ab658c004824d1397f0f8608a58ccb1","dataset":"people","format":1,"kind":"reserve","mechanism":{"adjacency":null,"epsilon":0.25,"kind":"PureDP","unit":"person","version":1},"previous":"22451eb113a48f0e0f85111e14b7fec4acb93191e8f6bdddf4402fd8be45d028","price":{"delta":0.0,"epsilon":0.25},"purpose":"release 0.25","seq":3,"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[0.75]}}','0e82c40b9813f1cdb318290fff6bef04115866c3cfd772cb0353651a0b2ea9a2');
INSERT INTO "tacit_entries" VALUES('people',4,'{"charge":"7ab658c004824d1397f0f8608a58ccb1","dataset":"people","format":1,"kind":"confirm","previous":"0e82c40b9813f1cdb318290fff6bef04115866c3cfd772cb0353651a0b2ea9a2","seq":4,"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[0.75]}}','cfc79180bada62fafb93ce96fe17e8e0b7c23b6c92b35d227f51537898ada031');
INSERT INTO "tacit_entries" VALUES('people',5,'{"charge":"f6c52e642c7f4957a3634fb20a559255","dataset":"people","format":1,"kind":"reserve","mechanism":{"adjacency":null,"epsilon":1.0,"kind":"PureDP","unit":"person","version":1},"previous":"cfc79180bada62fafb93ce96fe17e8e0b7c23b6c92b35d227f51537898ada031","price":{"delta":0.0,"epsilon":1.0},"purpose":"release 1.0","seq":5,"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[1.75]}}','8020ee990ea9a3990a7fe81ac2908cb91c35cabcd9bb0cbea6c8393f62208e3a');
INSERT INTO "tacit_entries" VALUES('people',6,'{"charge":"f6c52e642c7f4957a3634fb20a559255","dataset":"people","format":1,"kind":"confirm","previous":"8020ee990ea9a3990a7fe81ac2908cb91c35cabcd9bb0cbea6c8393f62208e3a","seq":6,"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[1.75]}}','346bfc77418b715784405a32cec21bc79f2468cd9b8dc34368c2ecf74303ba3d');
INSERT INTO "tacit_entries" VALUES('people',7,'{"charge":"f6c52e642c7f4957a3634fb20a559255","dataset":"people","files":{"model.pt":"50e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc326"},"format":1,"kind":"release","previous":"346bfc77418b715784405a32cec21bc79f2468cd9b8dc34368c2ecf74303ba3d","release":"14bd4a65ddabc06b73998043283beb555ea5ff87c494b7d96e84adb8d8e14345","seq":7,"time":"2026-11-18T07:31:41+00:00","totals":{"delta":[],"epsilon":[1.75]}}','1c76d9e9e74b6a040511c2c7c6434f904395d56716ed11932d035fc01f7bdcae');
INSERT INTO "tacit_entries" VALUES('people',8,'{"charge":"ffffffffffffffffffffffffffffffff","dataset":"people","format":1,"kind":"reserve","mechanism":{"kind":"Gaussian","noise_multiplier":5.0,"replace":2.0,"unit":"person","version":1},"previous":"1c76d9e9e74b6a040511c2c7c6434f904395d56716ed11932d035fc01f7bdcae","price":{"delta":1.0000000000000001e-07,"epsilon":0.9317784079076201},"purpose":"never confirmed","seq":8,"time":"2026-11-18T07:31:42+00:00","totals":{"delta":[1.0000000000000001e-07],"epsilon":[2.68177840790762]}}','4e63cc797a0dcfb266e496dd5fa678e5f72e97e4ebd1c2ac8ae29bcedafc6e43');
INSERT INTO "tacit_entries" VALUES('people',9,'{"charge":"ffffffffffffffffffffffffffffffff","dataset":"people","format":1,"kind":"resume","previous":"4e63cc797a0dcfb266e496dd5fa678e5f72e97e4ebd1c2ac8ae29bcedafc6e43","seq":9,"time":"2026-11-18T07:31:42+00:00","totals":{"delta":[1.0000000000000001e-07],"epsilon":[2.68177840790762]}}','d9fd67a6a63cff93c6bb2ce898136f3e73bdba1168eb2f8a926456c57f0156bb');
INSERT INTO "tacit_entries" VALUES('visits',0,'{"dataset":"visits","format":1,"kind":"register","previous":"0000000000000000000000000000000000000000000000000000000000000000","seq":0,"terms":{"adjacency":"add-remove","charge_delta":1e-08,"delta":1e-06,"epsilon":2.0,"failure_share":0.01,"fingerprint":null,"orders":[12.3],"rule":"renyi","size_public":true,"unit":"record"},"time":"2026-11-18T07:31:42+00:00","totals":{"delta":[],"epsilon":[]}}','b57df57f1dc364102efd69b2474be303ac2bea3cc679ca6097dfb45d78a42fc6');
INSERT INTO "tacit_entries" VALUES('visits',1,'{"charge":"545500c703654348b9a052ea45be116b","dataset":"visits","format":1,"kind":"reserve","mechanism":{"kind":"Gaussian","noise_multiplier":9.0,"replace":2.0,"unit":"record","version":1},"previous":"b57df57f1dc364102efd69b2474be303ac2bea3cc679ca6097dfb45d78a42fc6","price":{"delta":1e-08,"epsilon":0.5504145296744822,"failure":0.0,"renyi":[0.07592592592592669]},"purpose":"mean","seq":1,"time":"2026-11-18T07:31:42+00:00","totals":{"delta":[1e-08],"epsilon":[0.5504145296744822],"failure":[],"renyi":[[0.07592592592592669]]}}','f22bf80bec3811d68b17ce57682506365c801cc0c463cac8d4482279232dabd6');
INSERT INTO "tacit_entries" VALUES('visits',2,'{"charge":"545500c703654348b9a052ea45be116b","dataset":"visits","format":1,"kind":"confirm","previous":"f22bf80bec3811d68b17ce57682506365c801cc0c463cac8d4482279232dabd6","seq":2,"time":"2026-11-18T07:31:42+00:00","totals":{"delta":[1e-08],"epsilon":[0.5504145296744822],"failure":[],"renyi":[[0.07592592592592669]]}}','996ac87b23d971b26b8b961738442167e365e74363c3159beee5b2407d7735ff');
CREATE TABLE tacit_heads (
	dataset VARCHAR(200) NOT NULL, 
	seq INTEGER NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	PRIMARY KEY (dataset)
);
INSERT INTO "tacit_heads" VALUES('people',9,'d9fd67a6a63cff93c6bb2ce898136f3e73bdba1168eb2f8a926456c57f0156bb');
INSERT INTO "tacit_heads" VALUES('visits',2,'996ac87b23d971b26b8b961738442167e365e74363c3159beee5b2407d7735ff');
CREATE TABLE tacit_meta (
	name VARCHAR(64) NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "tacit_meta" VALUES('schema_version','1');
INSERT INTO "tacit_meta" VALUES('fingerprint_key','c478fefbe944e97874a7f2380d5c649290a5dec3486903742b18c0dff4d415ff');
CREATE TRIGGER tacit_entries_kept BEFORE DELETE ON tacit_entries 
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER tacit_entries_fixed BEFORE UPDATE ON tacit_entries 
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER tacit_heads_kept BEFORE DELETE ON tacit_heads 
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER tacit_heads_forward BEFORE UPDATE ON tacit_heads WHEN NEW.dataset <> OLD.dataset OR NEW.seq <> OLD.seq + 1
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER tacit_meta_kept BEFORE DELETE ON tacit_meta 
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
COMMIT;
